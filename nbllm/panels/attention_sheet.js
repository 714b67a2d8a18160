// All heads as thumbnails on one canvas: layers are rows, heads columns, the last column is the rollout up to a layer.
// A click or the arrow keys choose a head.

class HeadSheet {
  constructor({ choose }) {
    this.choose = choose;
    this.about = null;
    this.at = [0, 0];
    this.off = new Set();
    this.canvas = el('canvas', { tabindex: '0', role: 'application', 'aria-roledescription': 'sheet of heads' });
    this.canvas.addEventListener('pointerdown', (event) => this.point(event));
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.root = el('div', { class: 'nbllm-heads' }, this.canvas);
    this.pixels = null; // the thumbnails
  }

  // thumbnails: uint8 [L, H, S, S]
  set(about, thumbnails, palette) {
    Object.assign(this, { about, pixels: thumbnails, palette });
    const { size } = about;
    const room = Math.ceil(size / about.tokens.length); // a token's block reaches that far over the diagonal
    let causal = true;
    for (let i = 0; causal && i < thumbnails.length; i++) causal = !thumbnails[i] || (i % size) - (Math.floor(i / size) % size) <= room;
    this.causal = causal;
    this.draw();
  }

  select(layer, head, off) {
    this.at = [layer, head];
    const key = off.join(' ');
    const same = this.base && key === this.crossed;
    this.crossed = key;
    this.off = new Set(off.map(([l, h]) => `${l}.${h}`));
    this.draw(!same);
  }

  get cell() {
    return Math.max(9, Math.min(26, Math.floor(224 / (this.about.heads + 1))));
  }

  // Again: also the thumbnails, not only which one is chosen.
  draw(again = true) {
    if (!this.about) return;
    const { layers, heads } = this.about;
    const { cell, canvas } = this;
    const ratio = devicePixelRatio;
    const [width, height] = [cell * (heads + 1), cell * layers.length];
    const style = getComputedStyle(this.root);
    const colour = (name) => style.getPropertyValue(name).trim();
    if (again || !this.base) {
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      this.base = el('canvas', { width: canvas.width, height: canvas.height });
      const base = this.base.getContext('2d');
      base.scale(ratio, ratio);
      this.thumbnails(base, colour);
    }
    const brush = canvas.getContext('2d');
    brush.setTransform(1, 0, 0, 1, 0, 0);
    brush.clearRect(0, 0, canvas.width, canvas.height);
    brush.drawImage(this.base, 0, 0);
    brush.scale(ratio, ratio);
    const [layer, head] = this.at;
    for (const [stroke, thick] of [[colour('--nb-bg'), 4], [colour('--nb-accent'), 2]]) {
      brush.strokeStyle = stroke;
      brush.lineWidth = thick;
      brush.strokeRect(head * cell + 1, layer * cell + 1, cell - 2, cell - 2);
    }
    canvas.setAttribute('aria-label', `all heads, chosen: ${headName(this.about, layer, head)}; arrow keys choose`);
  }

  thumbnails(brush, colour) {
    const { layers, heads } = this.about;
    const { cell } = this;
    const ratio = devicePixelRatio;
    for (let l = 0; l < layers.length; l++) {
      for (let h = 0; h < heads; h++) {
        const image = this.thumbnail(l * heads + h, Math.round((cell - 2) * ratio));
        brush.putImageData(image, Math.round((h * cell + 1) * ratio), Math.round((l * cell + 1) * ratio));
        if (!this.off.has(`${l}.${h}`)) continue;
        brush.fillStyle = colour('--nb-bg');
        brush.globalAlpha = 0.65;
        brush.fillRect(h * cell + 1, l * cell + 1, cell - 2, cell - 2);
        brush.globalAlpha = 1;
        brush.strokeStyle = colour('--nb-s2');
        brush.lineWidth = 2;
        brush.beginPath();
        brush.moveTo(h * cell + 3, l * cell + 3);
        brush.lineTo((h + 1) * cell - 3, (l + 1) * cell - 3);
        brush.stroke();
      }
      brush.fillStyle = colour('--nb-fg2');
      brush.font = '11px sans-serif';
      brush.textAlign = 'center';
      brush.textBaseline = 'middle';
      brush.fillText('Σ', (heads + 0.5) * cell, (l + 0.5) * cell);
    }
  }

  // One head's picture at so many device pixels: of several values in one pixel the largest, so that lines stay.
  thumbnail(at, side) {
    const { size } = this.about;
    const image = new ImageData(side, side);
    const out = new Uint32Array(image.data.buffer);
    const edge = Int32Array.from({ length: side + 1 }, (_, i) => Math.floor((i * size) / side));
    for (let y = 0; y < side; y++) {
      for (let x = 0; x < side; x++) {
        let best = 0;
        for (let row = edge[y], lastRow = Math.max(row + 1, edge[y + 1]); row < lastRow; row++) {
          for (let column = edge[x], last = Math.max(column + 1, edge[x + 1]); column < last; column++) {
            const value = this.pixels[(at * size + row) * size + column];
            if (value > best) best = value;
          }
        }
        if (best || !this.causal || x <= y) out[y * side + x] = this.palette[best];
      }
    }
    return image;
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const head = Math.floor((event.clientX - box.left) / this.cell);
    const layer = Math.floor((event.clientY - box.top) / this.cell);
    const inside = layer >= 0 && layer < this.about.layers.length && head >= 0 && head <= this.about.heads;
    return inside ? [layer, head] : null;
  }

  point(event) {
    const place = this.about && this.place(event);
    if (place) this.choose(...place);
  }

  hover(event) {
    const place = this.about && this.place(event);
    this.canvas.title = place ? headName(this.about, ...place) : '';
  }

  key(event) {
    if (!this.about || event.ctrlKey || event.metaKey || event.altKey) return;
    const [layer, head] = this.at;
    const [lastLayer, lastHead] = [this.about.layers.length - 1, this.about.heads];
    const to = {
      ArrowLeft: [layer, head - 1],
      ArrowRight: [layer, head + 1],
      ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head],
      Home: [layer, 0],
      End: [layer, lastHead],
      PageUp: [0, head],
      PageDown: [lastLayer, head],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    const clamp = (value, last) => Math.min(last, Math.max(0, value));
    this.choose(clamp(to[0], lastLayer), clamp(to[1], lastHead));
  }
}

function headName(about, layer, head) {
  const number = about.layers[layer];
  return head === about.heads ? `rollout up to layer ${number}` : `layer ${number}, head ${head}`;
}
