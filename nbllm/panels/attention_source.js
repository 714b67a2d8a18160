// What is looked at: a text, a checkpoint along training, an adapter; and what it is compared with.

function lookAt({ look, compare, choices }) {
  const field = el('textarea', { rows: 2, 'aria-label': 'text to look at', placeholder: 'Write a text, then press Ctrl+Enter' });
  const other = el('textarea', { rows: 2, 'aria-label': 'text to compare with', placeholder: 'another text, then Ctrl+Enter' });
  const go = el('button', { type: 'button', onclick: () => look({ text: field.value }) }, 'Look');
  const commit = (area, act) =>
    area.addEventListener('keydown', (event) => {
      event.stopPropagation();
      if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      act();
    });
  commit(field, () => look({ text: field.value }));
  commit(other, () => compare({ text: other.value }));

  let steps = [];
  const soon = debounce(150, (at) => look({ checkpoint: steps[at] }));
  const along = slider({
    label: 'checkpoint',
    low: 0,
    high: 1,
    step: 1,
    format: (at) => (steps.length ? `${count(steps[Math.min(steps.length - 1, at)])}` : ''),
    read: (text) => steps.indexOf(Number(text.replaceAll(',', ''))),
    change: (at) => at >= 0 && soon(at),
  });
  const adapter = el('select', { 'aria-label': 'adapter', onchange: () => look({ adapter: adapter.value }) });
  const adapterRow = el('div', { class: 'nbllm-pick' }, el('span', {}, 'adapter'), adapter);
  const against = el('select', { 'aria-label': 'compare with', onchange: () => against.act() });
  for (const select of [adapter, against]) {
    select.addEventListener('keydown', (event) => event.stopPropagation());
    select.addEventListener('pointerdown', choices);
  }
  against.act = () => {
    const [kind, value] = JSON.parse(against.value);
    other.hidden = kind !== 'text';
    if (kind === 'text') other.focus();
    else if (kind === 'none') compare({});
    else compare({ text: field.value, [kind]: value });
  };
  const againstRow = el('div', { class: 'nbllm-pick' }, el('span', {}, 'compare'), against);
  const fill = (select, options, value) => {
    const key = JSON.stringify(options);
    if (select.key !== key) {
      select.key = key;
      select.replaceChildren(...options.map(([id, label]) => el('option', { value: id }, label)));
    }
    if (value !== undefined) select.value = value;
  };
  let begun = null;
  const set = (sides, { checkpoints, adapters }) => {
    const [first, second] = sides;
    if (first && begun !== first.text) {
      begun = field.value = first.text;
    }
    steps = checkpoints;
    along.root.hidden = checkpoints.length < 2;
    const range = along.root.querySelector('input');
    range.max = Math.max(1, checkpoints.length - 1);
    const at = checkpoints.indexOf(first?.checkpoint ?? checkpoints[checkpoints.length - 1]);
    along.set(at < 0 ? 0 : at);
    range.style.setProperty('--fill', `${(100 * Math.max(0, at)) / range.max}%`);
    adapterRow.hidden = !adapters.length;
    fill(adapter, [['off', 'off'], ...adapters.map((name) => [name, name])], first?.adapter ?? 'off');
    const option = (kind, value, label) => [JSON.stringify([kind, value]), label];
    fill(against, [
      option('none', null, 'nothing'),
      option('text', null, 'another text'),
      ...(checkpoints.length > 1 ? checkpoints : []).map((step) => option('checkpoint', step, `step ${count(step)}`)),
      ...(adapters.length ? ['off', ...adapters] : []).map((name) => option('adapter', name, `adapter ${name}`)),
    ]);
    if (!second && against.value && JSON.parse(against.value)[0] !== 'text') against.value = JSON.stringify(['none', null]);
    if (second && second.text !== first.text) {
      against.value = JSON.stringify(['text', null]);
      if (document.activeElement !== other) other.value = second.text;
      other.hidden = false;
    }
  };
  other.hidden = true;
  const label = el('div', { class: 'nbllm-label' }, 'text');
  const left = el('div', {}, label, field, other, el('div', { class: 'nbllm-actions' }, go));
  const right = el('div', {}, along.root, adapterRow, againstRow);
  return { root: el('div', { class: 'nbllm-columns nbllm-look nbllm-gap' }, left, right), set };
}
