// A token's alternatives, beside the token: a bar each before and after filters, and what dropped it. Choosing one is
// the owner's business.

const SHOW_AFTER = 60;
const HIDE_AFTER = 220;

class Alternatives {
  constructor() {
    this.title = el('div', { class: 'nbllm-alternatives-head' });
    this.rows = el('div', { class: 'rows' });
    this.hint = el('div', { class: 'nbllm-dim' });
    this.root = el(
      'div',
      { class: 'nbllm-alternatives', popover: 'manual', role: 'dialog', 'aria-label': 'alternatives to the token' },
      this.title,
      el('div', { class: 'alternative heads nbllm-dim', 'aria-hidden': 'true' }, el('span'), el('span'), el('span', {}, 'before'), el('span', {}, 'after filters')),
      this.rows,
      this.hint
    );
    this.open = false;
    this.timer = 0;
    this.root.addEventListener('pointerenter', () => clearTimeout(this.timer));
    this.root.addEventListener('pointerleave', () => this.leave());
    this.root.addEventListener('focusout', () => this.leave());
    this.root.addEventListener('keydown', (event) => this.key(event));
    this.scrolled = (event) => !this.root.contains(event.target) && this.open && this.place();
    window.addEventListener('scroll', this.scrolled, true);
    this.escaped = (event) => {
      if (event.key !== 'Escape' || !this.open) return;
      event.stopPropagation();
      this.escape();
    };
    window.addEventListener('keydown', this.escaped, true);
  }

  // text: the TokenText the token is in; branch(id): goes on with another token, or null where that can't be.
  point(text, place, node, { hover = false, enter = false }, branch) {
    clearTimeout(this.timer);
    const show = () => {
      if (!node.isConnected) return;
      this.fill(text.tokens[place], branch);
      this.node = node;
      this.text = text;
      if (!this.open) this.root.showPopover?.();
      this.open = true;
      this.place();
      if (enter) this.root.querySelector('button')?.focus();
    };
    if (hover && !this.open) this.timer = setTimeout(show, SHOW_AFTER);
    else show();
  }

  leave() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const focused = document.activeElement;
      if (this.root.contains(focused) || this.root.matches(':hover')) return;
      if (focused?.classList.contains('nbllm-token') && focused === this.node) return;
      this.hide();
    }, HIDE_AFTER);
  }

  hide() {
    clearTimeout(this.timer);
    if (this.open) this.root.hidePopover?.();
    this.open = false;
    this.node?.classList.remove('pointed');
    this.node = null;
  }

  // Below its token, or above where there is no room.
  place() {
    if (!this.node?.isConnected) return this.hide();
    for (const old of this.text.root.querySelectorAll('.pointed')) old.classList.remove('pointed');
    this.node.classList.add('pointed');
    const at = this.node.getClientRects()[0] || this.node.getBoundingClientRect();
    const { width, height } = this.root.getBoundingClientRect();
    const panel = this.root.parentElement.getBoundingClientRect(); // within the panel's width, where it fits
    const right = Math.min(window.innerWidth - 8, Math.max(panel.right, panel.left + width));
    const below = at.bottom + 4 + height < window.innerHeight || at.top - 4 - height < 0;
    this.root.style.left = `${Math.max(8, Math.min(at.left - 8, right - width))}px`;
    this.root.style.top = `${below ? at.bottom + 4 : at.top - 4 - height}px`;
  }

  fill(token, branch) {
    const facts = [
      `rank ${count(token.rank)}`,
      `probability ${probability(token.probability)} → ${probability(token.final)}`,
      `entropy ${token.entropy.toFixed(2)} → ${token.finalEntropy.toFixed(2)} nats`,
    ];
    const said = el('span', { class: 'nbllm-dim' });
    sayFacts(said, facts);
    this.title.replaceChildren(el('strong', { class: 'nbllm-mono' }, token.name), said);
    const all = token.alternatives();
    if (!all.some((one) => one.id === token.id)) {
      all.push({ id: token.id, name: token.name, rank: token.rank, before: token.probability, after: token.final, dropped: null });
    }
    const most = Math.max(...all.map((one) => Math.max(one.before, one.after)));
    this.rows.replaceChildren(...all.map((one) => this.row(one, one.id === token.id, most, branch)));
    say(this.hint, branch ? 'click, or ↓ and Enter: go on with another' : 'pinned: go back to its branch to leave it');
  }

  row({ id, name, rank, before, after, dropped }, chosen, most, branch) {
    const bar = (value, kind) => el('i', { class: kind, style: `width: ${(100 * value) / most}%` });
    const bars = el('span', { class: 'bars', 'aria-hidden': 'true' }, bar(before, dropped ? 'before dropped' : 'before'), bar(after, 'after'));
    const cells = [
      el('span', { class: 'nbllm-mono' }, name || `#${id}`),
      bars,
      el('span', { class: 'number' }, probability(before)),
      el('span', { class: dropped ? 'number dropped' : 'number' }, dropped || probability(after)),
    ];
    const label = `${name}, rank ${count(rank)}, ${probability(before)} before filters, ${dropped ? `dropped by ${dropped}` : `${probability(after)} after`}${chosen ? ', chosen' : ''}`;
    const kind = `alternative${chosen ? ' chosen' : ''}`;
    if (!branch) return el('div', { class: kind, 'aria-label': label, role: 'img' }, ...cells);
    const act = () => {
      this.hide();
      if (!chosen) branch(id);
    };
    return el('button', { type: 'button', class: kind, 'aria-label': label, tabindex: '-1', onclick: act }, ...cells);
  }

  key(event) {
    const buttons = [...this.root.querySelectorAll('button')];
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (to < 0) this.node?.focus();
    else buttons[Math.min(buttons.length - 1, to)]?.focus();
  }

  // Closes it; the focus goes back to the token.
  escape() {
    const node = this.node;
    const inside = this.root.contains(document.activeElement);
    this.hide();
    if (inside) {
      this.text.focus([...this.text.body.children].indexOf(node), { quiet: true });
    }
  }

  destroy() {
    clearTimeout(this.timer);
    window.removeEventListener('scroll', this.scrolled, true);
    window.removeEventListener('keydown', this.escaped, true);
  }
}
