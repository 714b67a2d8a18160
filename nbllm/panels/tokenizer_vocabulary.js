// A vocabulary as a list with a search; only the rows in sight are in the page, and their texts come when they are.

const ROW = 20;

class Vocabulary {
  // Options: search(query, by, turn) and rows(ids) ask the kernel; choose(id) shows a token's details.
  constructor({ search, rows, choose }) {
    this.ask = { search, rows, choose };
    this.ids = new Int32Array(0);
    this.texts = new Map();
    this.wanted = new Set();
    this.turn = 0;
    this.at = 0;
    this.query = el('input', { type: 'text', 'aria-label': 'search the vocabulary', placeholder: 'text, id, or bytes as 0x20 74' });
    this.by = el('select', { 'aria-label': 'sorted by' }, el('option', { value: 'id' }, 'by id'), el('option', { value: 'length' }, 'longest first'));
    this.said = el('span', { class: 'nbllm-dim', role: 'status' });
    this.sheet = el('div', { class: 'nbllm-strip-sheet' });
    this.list = el('div', { class: 'nbllm-mono nbllm-vocabulary', tabindex: '0', role: 'group', 'aria-label': 'vocabulary, arrow keys move' }, this.sheet);
    this.root = el('div', { class: 'nbllm-gap', hidden: true }, el('div', { class: 'nbllm-vocabulary-head' }, this.query, this.by, this.said), this.list);
    const begin = debounce(120, () => this.search());
    this.query.addEventListener('input', begin);
    this.query.addEventListener('keydown', (event) => event.stopPropagation());
    this.by.addEventListener('change', () => this.search());
    this.list.addEventListener('scroll', () => this.draw(), { passive: true });
    this.list.addEventListener('click', (event) => {
      const node = event.target.closest('[data-row]');
      if (node) this.move(Number(node.dataset.row));
    });
    this.list.addEventListener('keydown', (event) => {
      const to = { ArrowUp: this.at - 1, ArrowDown: this.at + 1, PageUp: this.at - 10, PageDown: this.at + 10, Home: 0, End: this.ids.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this.move(to);
    });
    this.fetch = debounce(60, () => {
      const ids = [...this.wanted];
      this.wanted.clear();
      if (ids.length) this.ask.rows(ids);
    });
  }

  toggle() {
    this.root.hidden = !this.root.hidden;
    if (!this.root.hidden) {
      this.search();
      this.query.focus();
    }
    return !this.root.hidden;
  }

  search() {
    this.ask.search(this.query.value, this.by.value, ++this.turn);
  }

  // Another vocabulary: what is known of the old one is dropped.
  forget() {
    this.texts.clear();
    if (!this.root.hidden) this.search();
  }

  found(content, view) {
    if (content.turn !== this.turn) return;
    this.ids = new Int32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
    this.at = 0;
    this.list.scrollTop = 0;
    say(this.said, `${count(this.ids.length)} of ${count(content.of)}`);
    this.draw();
  }

  rows({ ids, rows }) {
    ids.forEach((id, i) => this.texts.set(id, rows[i]));
    this.draw();
  }

  move(row) {
    if (!this.ids.length) return;
    this.at = Math.max(0, Math.min(this.ids.length - 1, row));
    const top = this.at * ROW;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
    this.draw();
    this.ask.choose(this.ids[this.at]);
  }

  draw() {
    this.sheet.style.height = `${this.ids.length * ROW}px`;
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4);
    const last = Math.min(this.ids.length, first + Math.ceil((this.list.clientHeight || 200) / ROW) + 8);
    const nodes = [];
    for (let row = first; row < last; row++) {
      const id = this.ids[row];
      const known = this.texts.get(id);
      if (!known) this.wanted.add(id);
      const node = el('div', { class: row === this.at ? 'entry at' : 'entry', 'data-row': row },
        el('span', { class: 'number' }, count(id)), el('span', { class: 'text' }, known ? known[0] || ' ' : '…'), el('span', { class: 'number' }, known ? `${known[1]} B` : ''));
      node.style.top = `${row * ROW}px`;
      nodes.push(node);
    }
    this.sheet.replaceChildren(...nodes);
    if (this.wanted.size) this.fetch();
  }
}
