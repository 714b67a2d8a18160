// The texts sampled so far as a list: a prompt's text, and under it what branches from it. Choosing one shows it again.

class Branches {
  constructor({ go }) {
    this.go = go;
    this.list = el('div', { class: 'nbllm-branches', role: 'group', 'aria-label': 'texts and branches' });
    this.root = el('div', { class: 'nbllm-gap', hidden: true });
    this.root.append(el('div', { class: 'nbllm-label' }, 'branches, mean log-probability of a token in nats'), this.list);
    this.list.addEventListener('keydown', (event) => this.key(event));
  }

  set(rows) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.root.hidden = rows.length < 2;
    this.list.replaceChildren(...rows.map((row) => this.row(row)));
    (this.list.querySelector('[aria-current]') || this.list.firstChild)?.setAttribute('tabindex', '0');
    if (focused !== null) this.list.querySelector(`[data-id="${focused}"]`)?.focus();
  }

  row({ id, depth, prompt, text, mean, current }) {
    const before = depth ? '└ ' : '';
    const said = el('span', { class: 'nbllm-mono text' }, before, el('span', { class: 'nbllm-dim' }, prompt), ` ${text}`);
    const number = el('span', { class: 'number' }, isNumber(mean) ? mean.toFixed(2).replace('-', '−') : '–');
    const node = el('button', { type: 'button', tabindex: '-1', 'data-id': String(id), 'aria-current': current ? 'true' : null, onclick: () => this.go(id) }, said, number);
    node.style.paddingLeft = `${4 + 16 * Math.min(depth, 8)}px`;
    return node;
  }

  key(event) {
    const rows = [...this.list.children];
    const at = rows.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = rows[Math.min(rows.length - 1, Math.max(0, to))];
    for (const row of rows) row.tabIndex = row === next ? 0 : -1;
    next.focus();
  }
}
