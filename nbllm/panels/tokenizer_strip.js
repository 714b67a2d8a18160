// Strips of tokens, aligned where all tokenizers cut. Lines are laid out by measured widths; only those in sight are in
// the page, so that ten thousand tokens scroll as ten do. One tab stop; arrow keys move a cursor. The layout of the
// numbers is in tokenizer_data.py.

const LOW = 24;
const HIGH = 42;

function readStrips({ strips }, buffers) {
  const numbers = buffers.map((view) => new Int32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)));
  const segments = numbers.pop();
  const read = strips.map((strip, which) => {
    const special = new Set(strip.special);
    const breaks = new Set(strip.breaks);
    const all = numbers[which];
    const shared = new Map(strip.shared.map(([first, size, text]) => [first, { size, text }]));
    return { ...strip, special, breaks, shared, place: (i) => all[4 * i], numbers: all };
  });
  return { strips: read, segments };
}

class Strips {
  // Options: point(which, index, {quiet}) is called where the cursor or the pointer comes to a token.
  constructor({ point }) {
    this.point = point;
    this.data = { strips: [], segments: new Int32Array(0) };
    this.lines = [];
    this.tops = [0];
    this.cursor = { which: 0, index: 0 };
    this.widths = new Map();
    this.drawn = new Map();
    this.sheet = el('div', { class: 'nbllm-strip-sheet' });
    this.root = el('div', {
      class: 'nbllm-mono nbllm-tokens', tabindex: '0', role: 'group', 'aria-label': 'tokens, arrow keys move from one to the next',
    }, this.sheet);
    this.root.addEventListener('scroll', () => this.draw(), { passive: true });
    this.root.addEventListener('keydown', (event) => this.key(event));
    const at = (event) => event.target.closest?.('[data-index]');
    this.root.addEventListener('pointerover', (event) => {
      const node = at(event);
      if (node) this.point(Number(node.dataset.which), Number(node.dataset.index), { hover: true });
    });
    this.root.addEventListener('pointerleave', () => this.data.strips.length && this.tell(true));
    this.root.addEventListener('click', (event) => {
      const node = at(event);
      if (node) this.move({ which: Number(node.dataset.which), index: Number(node.dataset.index) });
    });
    this.observer = new ResizeObserver(() => {
      if (Math.abs(this.root.clientWidth - this.width) > 1) this.layout();
    });
    this.observer.observe(this.root);
  }

  destroy() {
    this.observer.disconnect();
  }

  set(data) {
    this.data = data;
    const last = data.strips.length - 1;
    const which = Math.min(this.cursor.which, Math.max(0, last));
    this.cursor = { which, index: Math.max(0, Math.min(this.cursor.index, (data.strips[which]?.count ?? 1) - 1)) };
    this.layout();
  }

  measure(text, size) {
    const key = size + text;
    let width = this.widths.get(key);
    if (width === undefined) {
      this.context.font = size + this.family;
      width = Math.ceil(this.context.measureText(text).width);
      this.widths.set(key, width);
    }
    return width;
  }

  // The pieces of one strip from token `first` on: single tokens, and groups that share characters.
  pieces(strip, first, last) {
    const found = [];
    for (let i = first; i < last; ) {
      const group = strip.shared.get(i);
      const size = group ? Math.min(group.size, last - i) : 1;
      found.push({ first: i, size, text: group?.text });
      i += size;
    }
    return found;
  }

  pieceWidth(strip, piece) {
    if (!piece.text) return Math.min(this.width - 12, this.measure(strip.names[strip.place(piece.first)] || ' ', '13px ') + 5);
    let width = 4;
    for (let i = 0; i < piece.size; i++) width += this.measure(strip.names[strip.place(piece.first + i)], '10px ') + 4;
    return Math.max(width, this.measure(piece.text, '13px ') + 8);
  }

  layout() {
    const { strips, segments } = this.data;
    const count = strips.length;
    this.width = this.root.clientWidth;
    if (!this.width) return;
    this.context ??= document.createElement('canvas').getContext('2d');
    this.family = getComputedStyle(this.root).fontFamily;
    const room = this.width - 10;
    const done = new Array(count).fill(0);
    this.lines = [];
    let line = null;
    const open = () => {
      line = { first: done.slice(), units: [], width: 0, high: new Array(count).fill(false) };
      this.lines.push(line);
    };
    for (let s = 0; s < segments.length; s += count) {
      let width = 0;
      let ends = false;
      const high = [];
      const rows = strips.map((strip, which) => {
        const pieces = this.pieces(strip, done[which], segments[s + which]);
        let own = 0;
        for (const piece of pieces) {
          own += this.pieceWidth(strip, piece);
          if (piece.text) high[which] = true;
          if (strip.breaks.has(strip.place(piece.first + piece.size - 1))) ends = true;
        }
        width = Math.max(width, own);
        return pieces;
      });
      if (!line || (line.width + width > room && line.units.length)) open();
      line.units.push({ rows, width });
      line.width += width;
      high.forEach((is, which) => is && (line.high[which] = true));
      for (let which = 0; which < count; which++) done[which] = segments[s + which];
      line.last = done.slice();
      if (ends) line = null;
    }
    this.tops = [0];
    for (const each of this.lines) {
      each.height = each.high.reduce((sum, is) => sum + (is ? HIGH : LOW), count > 1 ? 10 : 2);
      this.tops.push(this.tops.at(-1) + each.height);
    }
    this.sheet.style.height = `${this.tops.at(-1)}px`;
    this.drawn.clear();
    this.sheet.replaceChildren();
    this.draw();
  }

  lineAt(y) {
    let low = 0;
    let high = this.lines.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  draw() {
    if (!this.lines.length) return;
    const from = this.lineAt(this.root.scrollTop - 40);
    const to = this.lineAt(this.root.scrollTop + (this.root.clientHeight || 300) + 40);
    for (const [number, node] of this.drawn) {
      if (number < from || number > to) {
        node.remove();
        this.drawn.delete(number);
      }
    }
    for (let number = from; number <= to; number++) {
      if (this.drawn.has(number)) continue;
      const node = this.lineNode(number);
      this.drawn.set(number, node);
      this.sheet.append(node);
    }
    this.mark();
  }

  lineNode(number) {
    const line = this.lines[number];
    const several = this.data.strips.length > 1;
    const node = el('div', { class: several ? 'line several' : 'line' });
    node.style.top = `${this.tops[number]}px`;
    node.style.height = `${line.height}px`;
    if (!several) {
      if (line.high[0]) node.classList.add('high');
      for (const unit of line.units) for (const piece of unit.rows[0]) node.append(this.pieceNode(0, piece));
      return node;
    }
    for (const unit of line.units) {
      const column = el('span', { class: 'unit' });
      column.style.width = `${unit.width}px`;
      unit.rows.forEach((pieces, which) => {
        const row = el('span', { class: line.high[which] ? 'row high' : 'row' });
        for (const piece of pieces) row.append(this.pieceNode(which, piece));
        column.append(row);
      });
      node.append(column);
    }
    return node;
  }

  pieceNode(which, piece) {
    const tokens = Array.from({ length: piece.size }, (_, i) => this.tokenNode(which, piece.first + i));
    if (!piece.text) return tokens[0];
    return el('span', { class: 'shared' }, el('span', { class: 'whole' }, piece.text), el('span', { class: 'parts' }, ...tokens));
  }

  tokenNode(which, index) {
    const strip = this.data.strips[which];
    const place = strip.place(index);
    const special = strip.special.has(place) ? ' special' : '';
    return el('span', { class: `token t${index % 5}${special}`, 'data-which': which, 'data-index': index }, strip.names[place] || ' ');
  }

  mark() {
    this.sheet.querySelector('.at')?.classList.remove('at');
    this.sheet.querySelector(`[data-which="${this.cursor.which}"][data-index="${this.cursor.index}"]`)?.classList.add('at');
  }

  lineOf({ which, index }) {
    let low = 0;
    let high = this.lines.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.lines[middle].last[which] > index) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  tell(quiet = false) {
    if (this.data.strips[this.cursor.which]?.count) this.point(this.cursor.which, this.cursor.index, { quiet });
  }

  move(cursor) {
    const strip = this.data.strips[cursor.which];
    if (!strip?.count) return;
    this.cursor = { which: cursor.which, index: Math.max(0, Math.min(strip.count - 1, cursor.index)) };
    const number = this.lineOf(this.cursor);
    const top = this.tops[number];
    const bottom = this.tops[number + 1];
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (bottom > this.root.scrollTop + this.root.clientHeight) this.root.scrollTop = bottom - this.root.clientHeight + 4;
    this.draw();
    this.tell();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.lines.length) return;
    const { which, index } = this.cursor;
    const number = this.lineOf(this.cursor);
    const page = Math.max(1, Math.floor(this.root.clientHeight / (this.lines[number]?.height || LOW)) - 1);
    // a line up or down: as far from the line's beginning
    const by = (lines) => {
      const target = Math.max(0, Math.min(this.lines.length - 1, number + lines));
      const { first, last } = this.lines[target];
      return Math.min(last[which] - 1, first[which] + index - this.lines[number].first[which]);
    };
    const to = {
      ArrowLeft: () => index - 1, ArrowRight: () => index + 1, Home: () => 0, End: () => Infinity,
      ArrowUp: () => by(-1), ArrowDown: () => by(1), PageUp: () => by(-page), PageDown: () => by(page),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    this.move({ which, index: to() });
  }
}
