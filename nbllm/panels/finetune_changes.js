// What an adapter changed: layers by modules as a picture, and the tokens that moved most, each with its numbers.

function changesView() {
  const label = el('div', { class: 'nbllm-label' });
  const picture = el('div', { class: 'nbllm-heat' });
  const tip = el('div', { class: 'nbllm-dim tip', role: 'status' });
  const moved = el('tbody');
  const movedLabel = el('div', { class: 'nbllm-label' });
  let rows = [];
  let columns = [];
  let head = el('tr');
  const top = el('thead', {}, head);
  const body = el('tbody');
  const table = el('details', { class: 'nbllm-table' }, el('summary', {}, 'as a table'),
    el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'changes as a table' }, el('table', {}, top, body)));
  const movedTable = el('div', { class: 'nbllm-moved' }, movedLabel, el('table', {},
    el('thead', {}, el('tr', {}, ...['base', 'adapter', 'token', 'after'].map((name) => el('th', { scope: 'col' }, name)))), moved));
  const root = el('div', { class: 'nbllm-changed nbllm-gap', hidden: true }, el('div', {}, label, picture, tip, table), movedTable);
  const number = (value) => (value === undefined ? '–' : value === 0 ? '0' : value.toPrecision(3));
  const name = (layer) => (layer === null ? '–' : String(layer));

  function set(report) {
    root.hidden = !report;
    if (!report) return;
    const largest = Math.max(...report.changes.map(([, , value]) => value));
    const swatches = Array.from({ length: 8 }, (_, place) => el('i', { class: `nbllm-v${place}` }));
    label.replaceChildren(`what ${report.adapter} changed · ${report.summary} · ${report.what} by layer ↓ and module → `,
      el('span', { class: 'nbllm-scale', 'aria-hidden': 'true' }, '0 ', ...swatches, ` ${number(largest)}`));
    columns = [...new Set(report.changes.map(([, module]) => module))];
    const byLayer = new Map();
    for (const [layer, module, value] of report.changes) {
      if (!byLayer.has(layer)) byLayer.set(layer, {});
      byLayer.get(layer)[module] = value;
    }
    rows = [...byLayer];
    const most = largest || 1;
    const cells = rows.flatMap(([layer, values]) => [
      el('span', { class: 'layer' }, name(layer)),
      ...columns.map((module) => {
        const value = values[module];
        const level = value === undefined ? '' : ` nbllm-v${Math.min(7, Math.floor((8 * value) / most))}`;
        return el('i', { class: `cell${level}`, title: `layer ${name(layer)}, ${module}: ${number(value)}` });
      }),
    ]);
    picture.style.gridTemplateColumns = `2.2em repeat(${columns.length}, minmax(18px, 58px))`;
    picture.setAttribute('role', 'img');
    picture.setAttribute('aria-label', `${report.what} by layer and module; ${report.summary}; the table below has the numbers`);
    picture.replaceChildren(el('span', {}), ...columns.map((module) => el('span', { class: 'module', title: module }, module)), ...cells);
    head.replaceChildren(el('th', { scope: 'col' }, 'layer'), ...columns.map((module) => el('th', { scope: 'col' }, module)));
    body.replaceChildren(...rows.map(([layer, values]) =>
      el('tr', {}, el('td', {}, name(layer)), ...columns.map((module) => el('td', {}, number(values[module]))))));
    movedTable.hidden = !report.moved.length;
    say(movedLabel, `tokens of ${report.on} whose probability moved most`);
    moved.replaceChildren(...report.moved.map((one) => {
      const up = one.after > one.before;
      return el('tr', {}, el('td', { class: 'n' }, one.before.toFixed(3)),
        el('td', { class: `n ${up ? 'up' : 'down'}` }, `${up ? '▲' : '▼'} ${one.after.toFixed(3)}`),
        el('td', { class: 'm' }, one.token), el('td', { class: 'm' }, `…${one.context}`));
    }));
  }

  picture.addEventListener('pointerover', (event) => say(tip, event.target.matches('.cell') ? event.target.title : ''));
  return { root, set };
}
