// The text with lines from the pinned token to those it looks at: the thicker, the more. A click or Enter pins another.
// A line stays within the part of the text that is on the screen: where its token is further up or down, it ends at the
// edge, dashed, and the caption says how many do.

const MOST_LINES = 40;
const EDGE = 3; // pixels
const SVG = 'http://www.w3.org/2000/svg';

class TokenLines {
  constructor({ pin }) {
    this.pin = pin;
    this.tokens = [];
    this.pinned = 0;
    this.svg = document.createElementNS(SVG, 'svg');
    this.svg.setAttribute('aria-hidden', 'true');
    this.body = el('div', { class: 'nbllm-mono' });
    this.caption = el('div', { class: 'nbllm-label' });
    this.inner = el('div', { class: 'nbllm-lines-inner' }, this.svg, this.body);
    this.scroll = el('div', { class: 'nbllm-lines', role: 'group', 'aria-label': 'tokens; arrow keys pin another' }, this.inner);
    this.root = el('div', { class: 'nbllm-gap' }, this.caption, this.scroll);
    let drawing = 0;
    this.scroll.addEventListener('scroll', () => {
      cancelAnimationFrame(drawing);
      drawing = requestAnimationFrame(() => this.drawLines());
    });
    this.body.addEventListener('click', (event) => {
      const { place } = event.target;
      if (isNumber(place)) this.pin(place);
    });
    this.body.addEventListener('keydown', (event) => {
      const to = { ArrowLeft: this.pinned - 1, ArrowRight: this.pinned + 1, Home: 0, End: this.tokens.length - 1 }[event.key];
      if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      this.follow = true;
      this.pin(Math.min(this.tokens.length - 1, Math.max(0, to)));
    });
  }

  set(tokens) {
    if (this.tokens === tokens) return;
    this.tokens = tokens;
    this.body.replaceChildren(
      ...tokens.map((token, place) => {
        const node = el('span', { class: 'nbllm-key' }, token);
        node.place = place;
        return node;
      })
    );
  }

  // row: the weights of the pinned query, one a token
  show(pinned, row) {
    const nodes = this.body.children;
    const old = nodes[this.pinned];
    for (const name of ['tabindex', 'aria-current', 'role', 'aria-label']) old?.removeAttribute(name);
    const moved = this.pinned !== pinned || !this.row;
    this.pinned = pinned;
    this.row = row;
    const node = nodes[pinned];
    if (!node) return;
    const below = node.offsetTop - this.scroll.scrollTop;
    if (moved && (below < 30 || below > this.scroll.clientHeight - 40)) this.scroll.scrollTop = node.offsetTop - this.scroll.clientHeight * 0.6;
    node.tabIndex = 0;
    node.setAttribute('role', 'button');
    node.setAttribute('aria-current', 'true');
    node.setAttribute('aria-label', `${this.tokens[pinned]}, token ${pinned}, pinned`);
    if (this.follow) node.focus();
    this.follow = false;
    this.draw();
  }

  draw() {
    const { row } = this;
    const nodes = this.body.children;
    const from = nodes[this.pinned];
    if (!row || !from) return;
    const most = row.reduce((a, b) => Math.max(a, b), 1e-9);
    row.forEach((weight, i) => {
      const share = weight / most;
      const shade = share < 0.02 ? '0%' : `${Math.round(100 * share ** 0.7)}%`;
      if (!nodes[i] || nodes[i].shade === shade) return;
      nodes[i].shade = shade;
      nodes[i].style.setProperty('--w', shade);
    });
    this.drawLines();
  }

  drawLines() {
    const { row, scroll } = this;
    const nodes = this.body.children;
    const from = nodes[this.pinned];
    if (!row || !from) return;
    const most = row.reduce((a, b) => Math.max(a, b), 1e-9);
    const keys = [...row.keys()].filter((i) => i !== this.pinned && row[i] > most * 0.02).sort((a, b) => row[b] - row[a]).slice(0, MOST_LINES);
    const box = this.inner.getBoundingClientRect();
    const [top, bottom] = [scroll.scrollTop + EDGE, scroll.scrollTop + scroll.clientHeight - EDGE];
    const end = (node) => {
      const own = node.getBoundingClientRect();
      const y = own.top - box.top;
      return { x: own.left - box.left + own.width / 2, y: Math.min(Math.max(y, top), bottom), cut: y < top ? -1 : y > bottom ? 1 : 0 };
    };
    const first = end(from);
    const beyond = { '-1': 0, 0: 0, 1: 0 };
    const lines = [];
    for (const key of keys) {
      const last = end(nodes[key]);
      beyond[last.cut] += 1;
      if (last.cut && last.cut === first.cut) continue; // neither end is on the screen
      const bend = Math.min(26, 8 + Math.abs(first.x - last.x) / 12);
      const [a, b] = [first, last].map(({ y, cut }) => (cut > 0 ? y : Math.max(top, y - bend)));
      const line = document.createElementNS(SVG, 'path');
      line.setAttribute('d', `M${first.x} ${first.y}C${first.x} ${a},${last.x} ${b},${last.x} ${last.y}`);
      line.setAttribute('stroke-width', (0.6 + 3 * row[key]).toFixed(2));
      line.setAttribute('opacity', (0.2 + 0.8 * (row[key] / most)).toFixed(2));
      if (last.cut || first.cut) line.setAttribute('stroke-dasharray', '4 3');
      lines.push(line);
    }
    this.svg.replaceChildren(...lines);
    this.svg.setAttribute('width', this.inner.clientWidth);
    this.svg.setAttribute('height', this.inner.scrollHeight);
    const further = [beyond[-1] && `${beyond[-1]} further up`, beyond[1] && `${beyond[1]} further down`].filter(Boolean);
    say(this.caption, [`${shownToken(this.tokens[this.pinned])} looks at`, ...further].join(' · '));
  }
}
