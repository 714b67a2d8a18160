// The logit lens. Its half in the kernel is lens.py, which names the messages.

const asArray = (Kind, view) => new Kind(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
const WINDOW = 24; // positions in the table at once

function render({ model, el: host }) {
  let lens = null;
  let data = null;
  let from = 0;
  let at = [0, 0]; // row and position looked at
  let colour = 'top';
  let steps = [];

  const chip = el('span', { class: 'nbllm-chip' });
  const facts = el('span', { class: 'nbllm-dim', role: 'status' });
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });
  const table = el('table', { role: 'grid', 'aria-label': 'layers by positions' });
  const details = el('div', { 'aria-live': 'polite' });
  const place = slider({
    label: 'tokens', low: 0, high: 1, step: 1, format: (n) => `${n + 1}–${Math.min(n + WINDOW, lens?.tokens.length ?? 0)}`,
    read: (text) => Number(text.split('–')[0]) - 1, change: (n) => move(n),
  });
  const soon = debounce(150, (n) => link.send({ do: 'look', checkpoint: steps[n] }));
  const along = slider({
    label: 'checkpoint', low: 0, high: 1, step: 1,
    format: (n) => (steps.length ? count(steps[Math.min(n, steps.length - 1)]) : ''),
    read: (text) => steps.indexOf(Number(text.replaceAll(',', ''))), change: (n) => n >= 0 && steps.length && soon(n),
  });
  const choice = el('select', { 'aria-label': 'colour', onchange: () => { colour = choice.value; draw(); } },
    el('option', { value: 'top' }, 'each layer’s first choice'),
    el('option', { value: 'final' }, 'the final prediction'),
    el('option', { value: 'actual' }, 'the token that comes'));
  choice.addEventListener('keydown', (event) => event.stopPropagation());
  const field = el('textarea', { rows: 2, 'aria-label': 'text to look at' });
  const look = () => link.send({ do: 'look', text: field.value });
  field.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); look(); }
  });
  const scale = el('span', { class: 'nbllm-lens-scale', 'aria-hidden': 'true' }, '0 ', ...[0, 1, 2, 3, 4, 5, 6, 7].map((n) => el('i', { class: `v${n}` })), ' 1');
  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Logit lens', 'data-lm-suppress-shortcuts': 'true' },
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Logit lens'), chip, facts),
    error, note,
    el('div', { class: 'nbllm-body' },
      el('div', { class: 'nbllm-columns', style: 'grid-template-columns: minmax(0, 1fr) minmax(220px, 26%)' },
        el('div', {},
          el('div', { class: 'nbllm-label' }, 'after each layer ↓ at each token → probability of ', choice, ' ', scale, ' a line above: it stays from here on'),
          el('div', { class: 'nbllm-lens' }, table), place.root),
        el('div', {}, details, along.root)),
      el('div', { class: 'nbllm-gap' }, el('div', { class: 'nbllm-label' }, 'text'), field,
        el('div', { class: 'nbllm-actions', style: 'margin-top: 4px' }, el('button', { type: 'button', onclick: look }, 'Look')))));
  host.append(root);

  const chance = (row, position) => {
    const cell = row * lens.tokens.length + position;
    return colour === 'top' ? data.chances[cell * lens.top] : colour === 'final' ? data.final[cell] : data.actual[cell];
  };
  const short = (text) => (text.length <= 10 ? text : `${text.slice(0, 9)}…`);

  function draw() {
    const shown = lens.tokens.slice(from, from + WINDOW).map((_, n) => from + n);
    const cell = (row, position) => {
      const value = chance(row, position);
      const level = Number.isFinite(value) ? ` v${Math.min(7, Math.floor(value * 8))}` : '';
      const text = lens.strings[data.places[(row * lens.tokens.length + position) * lens.top]];
      return el('td', {
        class: `${level}${lens.settles[position] === row ? ' s' : ''}`, role: 'gridcell', tabindex: row === at[0] && position === at[1] ? '0' : '-1',
        'data-row': row, 'data-at': position, 'aria-label': `layer ${lens.rows[row]}, ${lens.tokens[position]}: ${text} ${loss(value)}`,
      }, short(text));
    };
    table.replaceChildren(
      el('thead', {}, el('tr', {}, el('th', {}, 'layer'), ...shown.map((p) => el('th', { scope: 'col' }, short(lens.tokens[p]))))),
      el('tbody', {},
        ...lens.rows.map((name, row) => el('tr', {}, el('th', { scope: 'row' }, name), ...shown.map((p) => cell(row, p)))),
        el('tr', {}, el('th', { scope: 'row' }, 'settles'), ...shown.map((p) => el('td', {}, lens.rows[lens.settles[p]])))));
  }

  function tell() {
    const [row, position] = at;
    const cell = row * lens.tokens.length + position;
    const bars = Array.from({ length: lens.top }, (_, k) => {
      const value = data.chances[cell * lens.top + k];
      return el('div', { class: 'nbllm-bar' }, el('span', { class: 'nbllm-mono' }, lens.strings[data.places[cell * lens.top + k]]),
        el('span', { class: 'bars' }, el('i', { style: `width:${(100 * value).toFixed(1)}%` })), el('span', { class: 'number' }, value.toFixed(3)));
    });
    const following = lens.predicts === 'next' ? lens.tokens[position + 1] : lens.tokens[position];
    const known = data.ranks[cell] > 0;
    const before = row === 0 ? 'before the first layer' : `after layer ${lens.rows[row]}`;
    details.replaceChildren(
      el('div', { class: 'nbllm-label' }, `${before}, at “${lens.tokens[position]}”`), ...bars,
      el('div', { class: 'nbllm-label nbllm-gap' }, `the final prediction: ${data.final[cell].toFixed(3)}; it settles at ${lens.rows[lens.settles[position]]}`),
      ...(known ? [el('div', { class: 'nbllm-label' }, `“${following}” ${lens.predicts === 'next' ? 'comes' : 'stands here'}: ${data.actual[cell].toFixed(3)}, rank ${count(data.ranks[cell])}`)] : []));
  }

  function point(row, position, focus) {
    at = [row, position];
    if (position < from || position >= from + WINDOW) {
      from = Math.max(0, Math.min(position, lens.tokens.length - WINDOW));
      place.set(from, true);
      draw();
    }
    for (const old of table.querySelectorAll('td[tabindex="0"]')) old.tabIndex = -1;
    const cell = table.querySelector(`td[data-row="${row}"][data-at="${position}"]`);
    cell.tabIndex = 0;
    if (focus) cell.focus();
    tell();
  }

  function move(n) {
    from = Math.max(0, Math.min(n, lens.tokens.length - 1));
    at = [at[0], Math.min(Math.max(at[1], from), Math.min(from + WINDOW, lens.tokens.length) - 1)];
    draw();
    tell();
  }

  const cellOf = (event) => event.target.closest?.('td[data-row]');
  table.addEventListener('pointerover', (event) => {
    const cell = cellOf(event);
    if (cell) point(Number(cell.dataset.row), Number(cell.dataset.at), false);
  });
  table.addEventListener('click', (event) => {
    const cell = cellOf(event);
    if (cell) point(Number(cell.dataset.row), Number(cell.dataset.at), true);
  });
  table.addEventListener('keydown', (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !cellOf(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const row = Math.max(0, Math.min(lens.rows.length - 1, at[0] + step[0]));
    point(row, Math.max(0, Math.min(lens.tokens.length - 1, at[1] + step[1])), true);
  });

  function receive(content, buffers) {
    if (content.face) hideFace(root, content.face);
    const { state } = content;
    error.hidden = !state.error;
    say(error, state.error);
    steps = state.checkpoints;
    along.root.hidden = steps.length < 2;
    const range = along.root.querySelector('input');
    range.max = Math.max(1, steps.length - 1);
    const step = steps.indexOf(state.checkpoint ?? steps[steps.length - 1]);
    along.set(Math.max(0, step));
    range.style.setProperty('--fill', `${(100 * Math.max(0, step)) / range.max}%`);
    if (content.lens) {
      const again = lens && lens.tokens.join('') === content.lens.tokens.join('');
      lens = content.lens;
      const [places, chances, final, actual, ranks] = buffers;
      data = { places: asArray(Int32Array, places), chances: asArray(Float32Array, chances), final: asArray(Float32Array, final), actual: asArray(Float32Array, actual), ranks: asArray(Int32Array, ranks) };
      if (!again) {
        field.value = state.text;
        from = Math.max(0, lens.tokens.length - WINDOW);
        at = [lens.rows.length - 1, lens.tokens.length - 1];
      }
      at = [Math.min(at[0], lens.rows.length - 1), at[1]];
      place.root.hidden = lens.tokens.length <= WINDOW;
      const window = place.root.querySelector('input');
      window.max = Math.max(1, lens.tokens.length - WINDOW);
      place.set(from, true);
      window.style.setProperty('--fill', `${(100 * from) / window.max}%`);
      draw();
      tell();
      say(chip, lens.model);
    }
    say(facts, state.doing || lens?.summary || '');
  }

  function silence(gone) {
    note.hidden = !gone;
    say(note, gone ? 'No word from the kernel. Run the cell again.' : '');
  }

  const link = connect(model, { receive, silence });
  link.keep(false);
  return () => link.end();
}

export default { render };
