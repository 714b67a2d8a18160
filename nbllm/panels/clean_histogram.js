// A histogram whose threshold is a handle on it: dragged, moved by keys, or typed. Stands behind kit.js.

// Heights are square roots of the counts, so that a tail stays visible beside a tall bar.
// found: {score, title, argument, least, limit, whole, summary}; edges: B + 1 numbers; documents: B counts.
// change(value, rests): while it moves and once it rests; value null takes the limit away. choose(): its examples.
class Histogram {
  constructor(found, edges, documents, { change, choose }) {
    Object.assign(this, { found, edges, documents, change });
    this.limit = found.limit;
    const { title } = found;
    this.canvas = el('canvas', { 'aria-hidden': 'true' });
    this.handle = el('div', {
      class: 'handle', role: 'slider', tabindex: '0', 'aria-label': `${title}: threshold`, title: found.summary,
      'aria-valuemin': edges[0], 'aria-valuemax': edges[edges.length - 1],
    });
    this.plot = el('div', { class: 'nbllm-histogram' }, this.canvas, this.handle);
    this.field = el('input', { type: 'text', inputmode: 'decimal', 'aria-label': `${title}: threshold, typed`, title: found.summary });
    this.shown = el('button', { type: 'button', class: 'shown', title: `${found.summary}; examples`, onclick: choose, 'aria-pressed': 'false' }, title);
    this.ends = el('div', { class: 'nbllm-dim nbllm-clean-ends' }, el('span', {}, this.write(edges[0], 3)), el('span', {}, this.write(edges[edges.length - 1], 3)));
    this.root = el('div', {}, el('div', { class: 'nbllm-handle-head' }, this.shown, this.field), this.plot, this.ends);
    this.listen();
    this.show();
  }

  listen() {
    let dragging = false;
    const at = (event) => {
      const box = this.plot.getBoundingClientRect();
      return this.value((event.clientX - box.left) / box.width);
    };
    this.plot.addEventListener('pointerdown', (event) => {
      dragging = true;
      this.plot.setPointerCapture(event.pointerId);
      this.handle.focus();
      this.move(at(event), false);
      event.preventDefault();
    });
    this.plot.addEventListener('pointermove', (event) => dragging && this.move(at(event), false));
    const end = () => {
      if (dragging) this.move(this.limit, true);
      dragging = false;
    };
    this.plot.addEventListener('pointerup', end);
    this.plot.addEventListener('pointercancel', end);
    const rest = debounce(250, () => this.move(this.limit, true));
    this.handle.addEventListener('keydown', (event) => {
      const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
      const place = this.place(this.limit ?? this.edges[this.found.least ? 0 : this.edges.length - 1]);
      let next = null;
      if (steps) next = this.value(place + steps / 100);
      if (steps && this.found.whole && next === this.limit) next += Math.sign(steps);
      if (event.key === 'Home') next = this.edges[0];
      if (event.key === 'End') next = this.edges[this.edges.length - 1];
      if (next === null) return;
      event.preventDefault();
      event.stopPropagation();
      this.move(next, false);
      rest();
    });
    this.field.addEventListener('keydown', (event) => event.stopPropagation());
    this.field.addEventListener('change', () => {
      const typed = this.field.value.trim();
      const next = typed ? Number(typed) : null;
      if (typed && !Number.isFinite(next)) this.show();
      else if (next === null && this.found.was !== null) this.show(); // only what had no limit may lose it
      else this.move(next, true);
    });
  }

  // A share of the width as a score, and back; between the edges of a bin it is linear.
  value(share) {
    const bins = this.documents.length;
    const place = Math.min(Math.max(share, 0), 1) * bins;
    const index = Math.min(Math.floor(place), bins - 1);
    const value = this.edges[index] + (this.edges[index + 1] - this.edges[index]) * (place - index);
    const step = (this.edges[bins] - this.edges[0]) / 1000;
    const digits = this.found.whole ? 0 : Math.max(0, Math.ceil(-Math.log10(step)));
    return Number(value.toFixed(digits));
  }

  place(value) {
    const { edges } = this;
    const bins = this.documents.length;
    if (value <= edges[0]) return 0;
    if (value >= edges[bins]) return 1;
    let index = 0;
    while (edges[index + 1] <= value) index++;
    return (index + (value - edges[index]) / (edges[index + 1] - edges[index])) / bins;
  }

  move(value, rests) {
    const changed = value !== this.limit;
    this.limit = value;
    this.show();
    if (changed || rests) this.change(value, rests);
  }

  write(value, digits = 4) {
    return value === null ? '' : this.found.whole ? count(value) : String(Number(value.toPrecision(digits)));
  }

  show() {
    const none = this.limit === null;
    this.handle.style.left = `${this.place(none ? this.edges[this.found.least ? 0 : this.documents.length] : this.limit) * 100}%`;
    this.handle.classList.toggle('none', none);
    this.handle.setAttribute('aria-valuenow', none ? this.edges[this.documents.length] : this.limit);
    this.handle.setAttribute('aria-valuetext', none ? 'no limit' : this.write(this.limit));
    this.field.value = none ? '' : String(this.limit);
    this.field.placeholder = 'no limit';
    this.draw();
  }

  draw() {
    const { canvas, documents } = this;
    const wide = canvas.clientWidth;
    const tall = canvas.clientHeight;
    if (!wide) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(tall * ratio);
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    const kept = style.getPropertyValue('--nb-s1');
    const gone = style.getPropertyValue('--nb-s2');
    const most = Math.max(1, ...documents);
    const line = this.limit === null ? null : this.place(this.limit) * wide;
    documents.forEach((number, index) => {
      if (!number) return;
      const left = (index / documents.length) * wide;
      const width = wide / documents.length - 0.6;
      const height = Math.max(1.5, Math.sqrt(number / most) * tall);
      pen.fillStyle = kept;
      pen.fillRect(left, tall - height, width, height);
      if (line === null) return;
      // the part of the bar on the side that goes
      const from = this.found.least ? left : Math.max(left, line);
      const to = this.found.least ? Math.min(left + width, line) : left + width;
      pen.fillStyle = gone;
      if (to > from) pen.fillRect(from, tall - height, to - from, height);
    });
  }
}
