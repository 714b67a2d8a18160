// A text as tokens: one tab stop, arrow keys from token to token, a colour each. The layout of the numbers is in
// generate_tokens.py.

const HEAD = 7;
const EACH = 4;
const STRIDE = HEAD + EACH * 10;
const DROPPED_BY = [null, 'repetition', 'presence', 'frequency', 'temperature', 'top-k', 'top-p', 'min-p', 'typical-p'];

function readTokens({ texts, names }, view) {
  const all = new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  return texts.map((text, i) => {
    const numbers = all.subarray(i * STRIDE, (i + 1) * STRIDE);
    const [id, probability, final, rank, entropy, finalEntropy, kept] = numbers;
    const alternatives = () =>
      Array.from({ length: kept }, (_, k) => {
        const [other, before, after, dropped] = numbers.subarray(HEAD + EACH * k, HEAD + EACH * (k + 1));
        return { id: other, name: names[other], rank: k + 1, before, after, dropped: DROPPED_BY[dropped] };
      });
    return { id, text, name: names[id], probability, final, rank, entropy, finalEntropy, alternatives };
  });
}

// How many tokens two texts have in common from their start.
function sharedTokens(a, b) {
  let i = 0;
  while (i < a.length && i < b.length && a[i].id === b[i].id) i++;
  return i;
}

// Options: label (its accessible name), point(index, node, {focus}) and leave(): for the alternatives beside a token.
class TokenText {
  constructor({ label, point, leave }) {
    this.tokens = [];
    this.colour = 'none';
    this.before = null; // the tokens it is compared with
    this.point = point;
    this.promptNode = el('span', { class: 'prompt' });
    this.body = el('span');
    this.root = el('div', { class: 'nbllm-mono nbllm-output nbllm-said', role: 'region', 'aria-label': label }, this.promptNode, this.body);
    this.active = -1;
    this.quiet = false;
    this.waiting = false;
    const index = (event) => this.body.contains(event.target) && event.target.closest('.nbllm-token')?.place;
    this.root.addEventListener('pointerover', (event) => {
      const place = index(event);
      if (isNumber(place)) point(place, this.body.children[place], { hover: true });
    });
    this.root.addEventListener('pointerout', () => leave());
    this.root.addEventListener('click', (event) => {
      const place = index(event);
      if (isNumber(place)) this.focus(place);
    });
    this.body.addEventListener('focusin', (event) => {
      const place = index(event);
      if (!isNumber(place)) return;
      this.activate(place);
      if (!this.quiet) point(place, this.body.children[place], {});
    });
    this.body.addEventListener('focusout', () => leave());
    this.root.addEventListener('keydown', (event) => this.key(event));
  }

  key(event) {
    const last = this.tokens.length - 1;
    const to = { ArrowLeft: this.active - 1, ArrowRight: this.active + 1, Home: 0, End: last }[event.key];
    if (to === undefined && !['ArrowDown', 'Enter', ' '].includes(event.key)) return;
    if (event.ctrlKey || event.metaKey || event.altKey || last < 0) return;
    event.preventDefault();
    event.stopPropagation();
    if (to === undefined) this.point(this.active, this.body.children[this.active], { enter: true });
    else this.focus(Math.min(last, Math.max(0, to)));
  }

  // Quiet: without showing the alternatives.
  focus(place, { quiet = false } = {}) {
    const node = this.body.children[place];
    if (!node) return;
    this.quiet = quiet;
    node.tabIndex = 0; // what loses its tab stop loses the focus: first the new one
    node.focus();
    this.activate(place);
    this.quiet = false;
  }

  // Only this token is a tab stop, and says its numbers: the others read as plain text.
  activate(place) {
    const old = this.body.children[this.active];
    const node = this.body.children[place];
    this.active = place;
    if (old && old !== node) for (const name of ['tabindex', 'role', 'aria-label', 'aria-haspopup']) old.removeAttribute(name);
    if (!node) return;
    const token = this.tokens[place];
    node.tabIndex = 0;
    node.setAttribute('role', 'button');
    node.setAttribute('aria-haspopup', 'dialog');
    node.setAttribute('aria-label', `${token.name}, rank ${count(token.rank)}, probability ${probability(token.probability)}, entropy ${token.entropy.toFixed(2)} nats`);
  }

  // Keeps so many tokens and drops the rest.
  cut(keep) {
    const inside = this.body.contains(document.activeElement);
    while (this.body.children.length > keep) this.body.lastChild.remove();
    this.tokens.length = Math.min(this.tokens.length, keep);
    if (this.active >= keep) this.activate(keep - 1);
    if (this.active < 0 && keep) this.activate(0);
    // where the token that had the focus is gone, the next one that comes gets it
    if (inside && !this.body.contains(document.activeElement)) this.waiting = true;
  }

  append(tokens) {
    const common = this.before && this.before.length ? sharedTokens(this.before, this.tokens) : -1;
    let same = common === this.tokens.length;
    const nodes = tokens.map((token, i) => {
      const place = this.tokens.length + i;
      const node = el('span', {});
      node.place = place;
      const changed = same && this.before[place]?.id !== token.id;
      if (changed) same = false;
      node.changed = changed;
      fillToken(node, token);
      node.className = this.classes(token, node);
      return node;
    });
    this.tokens.push(...tokens);
    this.body.append(...nodes);
    if (this.active < 0 && this.tokens.length) this.activate(0);
    if (this.waiting && tokens.length) {
      if (document.activeElement === document.body) this.focus(this.tokens.length - tokens.length, { quiet: true });
      this.waiting = false;
    }
  }

  classes(token, node) {
    return `nbllm-token${levelClass(token, this.colour)}${node.changed ? ' changed' : ''}`;
  }

  paint(colour) {
    if (this.colour === colour) return;
    this.colour = colour;
    this.tokens.forEach((token, i) => (this.body.children[i].className = this.classes(token, this.body.children[i])));
  }

  prompt(text) {
    say(this.promptNode, text);
  }
}

// A new line is marked where it is; what is no text by itself (a part of a character, an end) shows its visible name.
// Both stand in the style sheet's `content`, so that a selected text is copied as it is.
function fillToken(node, token) {
  if (!token.text) node.append(el('span', { class: 'name', 'data-name': token.name }));
  token.text.split('\n').forEach((line, i) => {
    if (i) node.append(el('span', { class: 'line' }), '\n');
    if (line) node.append(line);
  });
}

const tokensText = (n) => `${count(n)} token${n === 1 ? '' : 's'}`;
const probability = (value) => (value >= 0.995 ? '1.00' : value >= 0.01 ? value.toFixed(2) : value > 0 ? '<0.01' : '0');
