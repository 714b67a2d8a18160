// What stands beside the map: the keys of the pinned query, the heads by score, the next token without some heads.

const KINDS = [
  ['prev', 'previous token'],
  ['first', 'first token'],
  ['dup', 'duplicate token'],
  ['induction', 'induction'],
  ['entropy', 'mean entropy, nats'],
  ['dist', 'mean distance, tokens'],
];
const MOST_KEYS = 7;
const MOST_HEADS = 60;

function barRow(name, share, value, kind = '') {
  const bar = el('span', { class: 'bars', 'aria-hidden': 'true' }, el('i', { class: kind, style: `width: ${Math.max(0, 100 * share)}%` }));
  return el('div', { class: 'nbllm-bar', role: 'listitem' }, el('span', { class: 'nbllm-mono' }, name), bar, el('span', { class: 'number' }, value));
}

// The keys that a query looks at most.
function keyBars() {
  const caption = el('div', { class: 'nbllm-label' });
  const list = el('div', { role: 'list' });
  const root = el('div', {}, caption, list);
  const show = (tokens, pinned, row) => {
    const best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, MOST_KEYS).filter((key) => row[key] > 0);
    say(caption, `${shownToken(tokens[pinned] ?? '')} (${pinned}) looks at`);
    list.replaceChildren(...best.map((key) => barRow(tokens[key], row[key], weightText(row[key]))));
  };
  return { root, show };
}

// Heads by score; a column's name sorts by it, a head's button goes to it.
class HeadTable {
  constructor({ choose }) {
    this.choose = choose;
    this.by = 3;
    this.body = el('tbody');
    this.heads = KINDS.map(([name, whole], column) =>
      el('button', { type: 'button', onclick: () => this.sort(column), title: `sort by ${whole}`, 'aria-label': whole }, name)
    );
    const top = el('tr', {}, el('th', { scope: 'col' }, 'head'), ...this.heads.map((button) => el('th', { scope: 'col' }, button)));
    const table = el('table', {}, el('thead', {}, top), this.body);
    this.scroll = el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'heads by score' }, table);
    this.root = el('div', { class: 'nbllm-table nbllm-scores nbllm-gap' }, el('div', { class: 'nbllm-label' }, 'heads by score'), this.scroll);
  }

  set(about, scores, columns) {
    Object.assign(this, { about, scores, columns });
    this.fill();
  }

  sort(column) {
    this.by = column;
    this.fill();
  }

  fill() {
    const { about, scores, by } = this;
    if (!about) return;
    const width = this.columns.length;
    const value = (at) => (Number.isFinite(scores[at * width + by]) ? scores[at * width + by] : -Infinity);
    const order = Array.from({ length: scores.length / width }, (_, at) => at).sort((a, b) => value(b) - value(a)).slice(0, MOST_HEADS);
    this.heads.forEach((button, column) => button.parentElement.setAttribute('aria-sort', column === by ? 'descending' : 'none'));
    this.body.replaceChildren(
      ...order.map((at) => {
        const [layer, head] = [Math.floor(at / about.heads), at % about.heads];
        const go = el('button', { type: 'button', 'aria-label': headName(about, layer, head), onclick: () => this.choose(layer, head) }, `${about.layers[layer]}.${head}`);
        const cells = Array.from(scores.subarray(at * width, (at + 1) * width), (score, column) =>
          el('td', { class: column === by ? 'by' : '' }, Number.isFinite(score) ? score.toFixed(column === 5 ? 1 : 2) : '–')
        );
        const row = el('tr', {}, el('th', { scope: 'row' }, go), ...cells);
        row.head = `${layer}.${head}`;
        return row;
      })
    );
    this.mark();
  }

  select(layer, head) {
    this.at = `${layer}.${head}`;
    this.mark();
  }

  mark() {
    for (const row of this.body.children) {
      if (row.head === this.at) row.setAttribute('aria-current', 'true');
      else row.removeAttribute('aria-current');
    }
  }
}

// The next token with all heads and without those switched off.
function ablationBars({ back, clear }) {
  const what = el('span', {}, 'next token');
  const caption = el(
    'div',
    { class: 'nbllm-label' },
    what,
    ' with ',
    el('span', { class: 'nbllm-s1' }, 'all heads'),
    'and ',
    el('span', { class: 'nbllm-s2' }, 'without')
  );
  const chips = el('div', { class: 'nbllm-actions nbllm-off' });
  const list = el('div', { role: 'list' });
  const root = el('div', { class: 'nbllm-gap', hidden: true }, caption, chips, list);
  const show = (about, off, next, predicts) => {
    root.hidden = !off.length;
    say(what, predicts);
    const names = off.map(([layer, head]) => {
      const name = `${about.layers[layer]}.${head}`;
      return el('button', { type: 'button', 'aria-label': `switch ${name} on again`, onclick: () => back(layer, head) }, `${name} ×`);
    });
    if (off.length > 1) names.push(el('button', { type: 'button', onclick: clear }, 'all on'));
    chips.replaceChildren(...names);
    const rows = next || [];
    const most = Math.max(1e-9, ...rows.flatMap(({ before, after }) => [before, after]));
    list.replaceChildren(
      ...rows.map(({ text, before, after }) => {
        const bar = (value, kind) => el('i', { class: kind, style: `width: ${(100 * value) / most}%` });
        const bars = el('span', { class: 'bars', 'aria-hidden': 'true' }, bar(before, 'before'), bar(after, 'dropped'));
        const said = `${text}: ${weightText(before)} with all heads, ${weightText(after)} without`;
        return el('div', { class: 'nbllm-bar two', role: 'listitem', 'aria-label': said },
          el('span', { class: 'nbllm-mono' }, text), bars, el('span', { class: 'number' }, weightText(before)), el('span', { class: 'number' }, weightText(after)));
      })
    );
  };
  return { root, show };
}
