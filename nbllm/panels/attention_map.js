// One map on a canvas: queries are rows, keys columns, tokens on both axes, the weight under the pointer in a line of
// text. A long text is drawn by the largest weight of each pixel, or a window of it at a time. Arrow keys move a
// cursor, Enter pins its row.

const LABEL = 12;

class AttentionMap {
  constructor({ label, pin, look }) {
    Object.assign(this, { label, pin, look });
    this.data = null; // {tokens, n, stride, codes, top, entropy, distance}, or with `minus` a second one
    this.pinned = 0;
    this.cursor = null;
    this.window = { from: 0, size: Infinity };
    this.perRow = false;
    this.canvas = el('canvas', { tabindex: '0', role: 'application', 'aria-roledescription': 'attention map' });
    this.caption = el('div', { class: 'nbllm-label' });
    this.said = el('div', { class: 'nbllm-label nbllm-weight', role: 'status' });
    this.root = el('div', { class: 'nbllm-map' }, this.caption, this.canvas, this.said);
    this.canvas.addEventListener('pointermove', (event) => this.move(this.place(event)));
    this.canvas.addEventListener('pointerleave', () => this.move(null));
    this.canvas.addEventListener('click', (event) => {
      const place = this.place(event);
      if (place) this.pin(place[0]);
    });
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.rows = new Map(); // exact weights by query
  }

  set(data, palette) {
    if (this.data?.tokens.length !== data.tokens.length && !this.chosen) this.perRow = data.tokens.length > 64;
    this.data = data;
    this.palette = palette;
    this.rows.clear();
    if (this.cursor && (this.cursor[0] >= data.tokens.length || this.cursor[1] >= data.tokens.length)) this.cursor = null;
    this.draw();
    this.speak();
  }

  exact(query, row) {
    if (this.rows.size > 64) this.rows.clear();
    this.rows.set(query, row);
    this.speak();
  }

  // The weight of a query and a key: exact where its row is here, else from the map's byte.
  weight(query, key) {
    const row = this.rows.get(query);
    return row ? row[key] : mapWeight(this.data, query, key);
  }

  // What is shown: [first token, how many].
  get span() {
    const total = this.data.tokens.length;
    const size = Math.min(total, this.window.size);
    return [Math.min(Math.max(0, this.window.from), total - size), size];
  }

  zoom(size, around) {
    this.window = { from: Math.round(around - size * 0.8), size };
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const { canvas, data } = this;
    const ratio = devicePixelRatio;
    const style = getComputedStyle(this.root);
    const colour = (name) => style.getPropertyValue(name).trim();
    const mono = getComputedStyle(this.caption.ownerDocument.body).getPropertyValue('--jp-code-font-family').trim();
    const font = `11px ${mono || 'ui-monospace, monospace'}`;
    const brush = canvas.getContext('2d');
    brush.font = font;
    const [from, size] = this.span;
    const shown = data.tokens.slice(from, from + size);
    const widest = Math.max(...shown.slice(0, 400).map((token) => brush.measureText(clipped(token)).width), 20);
    const left = Math.ceil(Math.min(92, widest)) + 8;
    const top = Math.ceil(Math.min(92, widest) * 0.87) + 10;
    const room = Math.max(120, (this.root.clientWidth || 480) - left - 26);
    const side = Math.min(room, 560, Math.max(180, size * 26));
    this.box = { left, top, side };
    const [width, height] = [left + side + 26, top + side + 8];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.paint(brush, ratio);
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    const cell = side / size;
    brush.font = font;
    brush.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil(LABEL / cell));
    const marked = new Set([this.pinned, ...(this.cursor || [])]);
    const label = (at, strong, asRow, asColumn) => {
      const middle = (at - from + 0.5) * cell;
      brush.fillStyle = colour(strong ? '--nb-accent' : '--nb-fg');
      if (asRow) {
        brush.textAlign = 'right';
        brush.fillText(clipped(data.tokens[at]), left - 5, top + middle);
      }
      if (asColumn) {
        brush.save();
        brush.translate(left + middle, top - 5);
        brush.rotate(-Math.PI / 3);
        brush.textAlign = 'left';
        brush.fillText(clipped(data.tokens[at]), 0, 0);
        brush.restore();
      }
    };
    const near = (at, others) => others.some((other) => other !== undefined && at !== other && Math.abs(at - other) * cell < LABEL);
    const rowMarks = [this.pinned, this.cursor?.[0]];
    const columnMarks = [this.cursor?.[1]];
    for (let at = from; at < from + size; at += every) {
      if (!marked.has(at)) label(at, false, !near(at, rowMarks), !near(at, columnMarks));
      else label(at, false, !rowMarks.includes(at) && !near(at, rowMarks), !columnMarks.includes(at) && !near(at, columnMarks));
    }
    const inside = (at) => at >= from && at < from + size;
    if (inside(this.pinned)) label(this.pinned, true, true, false);
    if (this.cursor) {
      const [row, column] = this.cursor;
      if (inside(row) && row !== this.pinned && !near(row, [this.pinned])) label(row, true, true, false);
      if (inside(column)) label(column, true, false, true);
    }
    const frame = (row, column, w, h, line) => {
      for (const [stroke, thick] of [[colour('--nb-bg'), line + 2], [colour('--nb-accent'), line]]) {
        brush.strokeStyle = stroke;
        brush.lineWidth = thick;
        brush.strokeRect(left + (column - from) * cell, top + (row - from) * cell, w, h);
      }
    };
    if (inside(this.pinned)) frame(this.pinned, from, side, Math.max(cell, 2), 1.5);
    if (this.cursor && inside(this.cursor[0]) && inside(this.cursor[1])) frame(...this.cursor, Math.max(cell, 4), Math.max(cell, 4), 2);
    this.name();
  }

  // The weights as device pixels, of several in one pixel the largest; made once for what is shown.
  paint(brush, ratio) {
    const { data, box } = this;
    const [from, size] = this.span;
    const pixels = Math.round(box.side * ratio);
    const key = [from, size, pixels, this.perRow].join();
    if (this.painted?.data !== data || this.painted.key !== key) this.painted = { data, key, image: this.image(from, size, pixels) };
    brush.setTransform(1, 0, 0, 1, 0, 0);
    brush.putImageData(this.painted.image, Math.round(box.left * ratio), Math.round(box.top * ratio));
  }

  image(from, size, pixels) {
    const { data } = this;
    const image = new ImageData(pixels, pixels);
    const out = new Uint32Array(image.data.buffer);
    const first = Math.floor(from / data.stride);
    const last = Math.min(data.n, Math.ceil((from + size) / data.stride));
    const { values, colours } = this.levels();
    const edges = Int32Array.from({ length: pixels + 1 }, (_, i) => first + Math.floor((i * (last - first)) / pixels));
    const gap = size <= 48 && pixels / size > 8;
    for (let y = 0; y < pixels; y++) {
      const rowFrom = edges[y];
      const rowTo = Math.max(rowFrom + 1, edges[y + 1]);
      if (gap && y && rowFrom !== edges[y - 1]) continue;
      for (let x = 0; x < pixels; x++) {
        const columnFrom = edges[x];
        if (data.causal && columnFrom >= rowTo) break;
        if (gap && x && columnFrom !== edges[x - 1]) continue;
        const columnTo = Math.max(columnFrom + 1, edges[x + 1]);
        let best = 0;
        for (let row = rowFrom; row < rowTo; row++) {
          for (let at = row * data.n + columnFrom, end = row * data.n + columnTo; at < end; at++) {
            const value = values[at];
            if (Math.abs(value) > Math.abs(best)) best = value;
          }
        }
        out[y * pixels + x] = colours[best + 255];
      }
    }
    return image;
  }

  // Each weight as -255 to 255 (below 0 only for a difference), and the colours of these.
  levels() {
    const { data, palette } = this;
    const { n, codes, stride, top, minus } = data;
    const share = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2);
    const values = new Int16Array(n * n);
    let most = 1e-9;
    if (minus) {
      const differences = new Float32Array(n * n);
      for (let at = 0; at < n * n; at++) {
        const row = Math.floor(at / n) * stride;
        differences[at] = minus.top[row] * share[minus.codes[at]] - top[row] * share[codes[at]];
        most = Math.max(most, Math.abs(differences[at]));
      }
      for (let at = 0; at < n * n; at++) values[at] = Math.round((255 * differences[at]) / most);
      this.most = most;
      return { values, colours: Uint32Array.from({ length: 511 }, (_, i) => diverging((i - 255) / 255)) };
    }
    for (const value of top) most = Math.max(most, value);
    const level = new Uint8Array(256);
    for (let row = 0; row < n; row++) {
      const scale = this.perRow ? 255 : (255 * top[row * stride]) / most;
      if (!row || !this.perRow) for (let code = 0; code < 256; code++) level[code] = Math.round(share[code] * scale);
      for (let at = row * n, end = at + n; at < end; at++) values[at] = level[codes[at]];
    }
    this.most = most;
    return { values, colours: Uint32Array.from({ length: 511 }, (_, i) => palette[Math.max(0, i - 255)]) };
  }

  place(event) {
    if (!this.data || !this.box) return null;
    const box = this.canvas.getBoundingClientRect();
    const [from, size] = this.span;
    const column = from + Math.floor(((event.clientX - box.left - this.box.left) / this.box.side) * size);
    const row = from + Math.floor(((event.clientY - box.top - this.box.top) / this.box.side) * size);
    return row >= from && row < from + size && column >= from && column < from + size ? [row, column] : null;
  }

  move(place) {
    if (place?.[0] === this.cursor?.[0] && place?.[1] === this.cursor?.[1]) return;
    this.cursor = place;
    if (place && !this.rows.has(place[0])) this.look(place[0]);
    this.draw();
    this.speak();
  }

  key(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.data.tokens.length - 1;
    const [row, column] = this.cursor || [this.pinned, this.pinned];
    const to = {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [row, 0],
      End: [row, this.data.causal ? row : last],
      PageUp: [0, column],
      PageDown: [last, column],
    }[event.key];
    if (!to && event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    event.stopPropagation();
    if (!to) return this.pin(row);
    const place = to.map((value) => Math.min(last, Math.max(0, value)));
    const [from, size] = this.span;
    const lowest = Math.min(...place);
    const highest = Math.max(...place);
    if (lowest < from) this.window.from = lowest;
    else if (highest >= from + size) this.window.from = highest - size + 1;
    this.move(place);
  }

  // The weight under the cursor, and what there is to say of its query.
  speak() {
    const { data, cursor } = this;
    if (!data || !cursor) return say(this.said, 'point at a cell, or move with the arrow keys; a click or Enter pins its query');
    const [row, column] = cursor;
    const weight = this.weight(row, column);
    const about = this.rows.has(row) || data.stride === 1 ? '' : ' at most, of its block';
    const pair = `${shownToken(data.tokens[row])} (${row}) → ${shownToken(data.tokens[column])} (${column})`;
    if (data.minus) return say(this.said, `${pair}: ${signed(mapWeight(data.minus, row, column) - mapWeight(data, row, column))}`);
    if (data.causal && column > row) return say(this.said, `${pair}: later, not seen`);
    say(this.said, `${pair}: ${weightText(weight)}${about} · entropy ${data.entropy[row].toFixed(2)} nats · distance ${data.distance[row].toFixed(1)}`);
  }

  name() {
    const { data } = this;
    const [from, size] = this.span;
    const part = size < data.tokens.length ? ` · tokens ${count(from)} to ${count(from + size - 1)} of ${count(data.tokens.length)}` : '';
    const scale = data.minus ? (this.most < 5e-4 ? 'no difference' : `blue less, vermilion more, ±${this.most.toFixed(2)}`) : this.perRow ? '0 … the largest of each row' : `0 … ${this.most.toFixed(2)}`;
    say(this.caption, `${this.label()} · query ↓ key → (${scale})${part}`);
    this.canvas.setAttribute('aria-label', `${this.label()}, ${data.tokens.length} tokens, query ${data.tokens[this.pinned] ?? ''} pinned; arrow keys move, Enter pins`);
  }
}

function mapWeight(data, query, key) {
  const [row, column] = [Math.floor(query / data.stride), Math.floor(key / data.stride)];
  return data.top[query] * (data.codes[row * data.n + column] / 255) ** 2;
}

// From blue (-1) over the background's grey to vermilion (1); the same hues as the series'.
function diverging(value) {
  const end = value < 0 ? [0, 114, 178] : [213, 94, 0];
  const share = Math.min(1, Math.abs(value)) ** 0.7;
  const [r, g, b] = end.map((channel) => Math.round(238 + (channel - 238) * share));
  return (255 << 24) | (b << 16) | (g << 8) | r;
}

const clipped = (token) => (token.length <= 12 ? token : `${token.slice(0, 11)}…`);
const shownToken = (token) => `“${token.length <= 24 ? token : `${token.slice(0, 23)}…`}”`;
const weightText = (weight) => (weight >= 0.001 ? weight.toFixed(3) : weight === 0 ? '0' : weight.toExponential(1).replace('e-', 'e−'));
const signed = (value) => `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(3)}`;
