// The fine-tuning panel. Its half in the kernel is finetune.py, which names the messages.

function render({ model, el: host }) {
  let state = null;
  let columns = [];
  let sliders = new Map();

  const chip = el('span', { class: 'nbllm-chip' });
  const facts = el('span', { class: 'nbllm-dim', role: 'status' });
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });
  const field = el('textarea', { rows: 3, 'aria-label': 'prompt' });
  const chat = el('input', { type: 'checkbox' });
  const ask = (more) => link.send({ prompt: field.value, chat: chat.checked, ...more });
  const sample = () => ask({ do: 'sample' });
  const go = el('button', { type: 'button', onclick: sample }, 'Sample');
  const stop = el('button', { type: 'button', class: 'bad', disabled: true, onclick: () => link.send({ do: 'stop' }) }, 'Stop');
  const choices = el('div', { role: 'group', 'aria-label': 'adapters beside the base' });
  const settings = settingSliders((moved) => ask({ do: 'settings', value: moved }));
  const texts = el('div', { class: 'nbllm-compared live', role: 'group', 'aria-label': 'base and adapters' });
  const which = el('select', { 'aria-label': 'adapter whose changes are shown' });
  const look = el('button', { type: 'button', onclick: () => link.send({ do: 'changes', value: which.value }) }, 'What it changed');
  const changes = changesView();
  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Fine-tuning', 'data-lm-suppress-shortcuts': 'true' },
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Fine-tuning'), chip,
      el('div', { class: 'nbllm-tail short' }, facts, el('div', { class: 'nbllm-actions' }, go, stop))),
    error, note,
    el('div', { class: 'nbllm-body' },
      el('div', { class: 'nbllm-columns nbllm-generate' },
        el('div', {},
          el('div', { class: 'nbllm-label' }, 'prompt'), field,
          el('label', { class: 'nbllm-check' }, chat, ' in the chat template'),
          el('div', { class: 'nbllm-label nbllm-gap' }, 'beside the base'), choices,
          el('div', { class: 'nbllm-label nbllm-gap' }, 'the same random numbers in every column'), settings.root),
        el('div', {}, texts,
          el('div', { class: 'nbllm-actions nbllm-gap' }, which, look))),
      changes.root));
  host.append(root);

  field.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      sample();
    }
  });
  chat.addEventListener('change', sample);
  for (const node of [chat, which]) node.addEventListener('keydown', (event) => event.stopPropagation());

  function weightOf(adapter) {
    if (!sliders.has(adapter)) {
      const soon = debounce(120, (value) => ask({ do: 'scale', adapter, value }));
      sliders.set(adapter, slider({
        label: `weight of ${adapter}`, bare: true, low: 0, high: state.highest, step: 0.05, format: (value) => value.toFixed(2), change: soon,
      }));
    }
    return sliders.get(adapter);
  }

  // The columns' frames stay, so that a slider keeps the focus while its text changes.
  function frames() {
    const names = [null, ...state.chosen];
    if (columns.length === names.length && columns.every((column, i) => column.adapter === names[i])) return;
    columns = names.map((adapter) => {
      const title = el('strong', {}, adapter === null ? 'base' : adapter);
      const numbers = el('div', { class: 'h' });
      const said = el('pre', { tabindex: '0', role: 'region', 'aria-label': `what ${adapter ?? 'the base'} says` });
      const weight = adapter === null
        ? el('div', { class: 'h' }, 'weight 0')
        : el('div', {}, el('span', { class: 'h', 'aria-hidden': 'true' }, 'weight: 0 base, 1 trained'), weightOf(adapter).root);
      return { adapter, numbers, said, prompt: el('span', { class: 'p' }), body: el('span'), root: el('div', {}, title, weight, numbers, said) };
    });
    for (const column of columns) column.said.append(column.prompt, ' ', column.body);
    texts.replaceChildren(...columns.map((column) => column.root));
  }

  function choose() {
    const on = [...choices.querySelectorAll('input:checked')].map((input) => input.value);
    if (on.length) ask({ do: 'choose', value: on });
  }

  function pick() {
    const key = JSON.stringify(state.adapters);
    if (choices.dataset.key !== key) {
      choices.dataset.key = key;
      choices.replaceChildren(...state.adapters.map((name) => {
        const input = el('input', { type: 'checkbox', value: name, onchange: choose });
        input.addEventListener('keydown', (event) => event.stopPropagation());
        return el('label', { class: 'nbllm-check' }, input, ` ${name}`);
      }));
    }
    const several = state.chosen.length > 1;
    for (const input of choices.querySelectorAll('input')) {
      input.checked = state.chosen.includes(input.value);
      input.disabled = input.checked ? !several : state.chosen.length >= state.most;
    }
    if (which.dataset.key === state.chosen.join('\n')) return;
    which.dataset.key = state.chosen.join('\n');
    const before = which.value;
    which.replaceChildren(...state.chosen.map((name) => el('option', { value: name }, name)));
    which.value = state.chosen.includes(before) ? before : state.chosen[0];
  }

  function receive(content) {
    if (content.face) hideFace(root, content.face);
    if (content.kind === 'begin' || content.kind === 'piece') {
      const column = columns[content.column];
      if (!column) return;
      if (content.kind === 'begin') {
        say(column.prompt, field.value);
        column.body.replaceChildren();
        say(column.numbers, '');
      } else column.body.append(content.text);
      return;
    }
    const first = state === null;
    state = content.state;
    error.hidden = !state.error;
    say(error, state.error);
    say(chip, `${state.model} · ${state.chosen.join(', ')}`);
    say(facts, state.doing || content.summary || 'press Sample');
    stop.disabled = !state.doing;
    if (first) field.value = state.prompt;
    if (document.activeElement !== chat) chat.checked = state.chat;
    pick();
    frames();
    settings.set(state.settings, first);
    for (const name of state.chosen) weightOf(name).set(state.scales[name], first);
    if (content.columns && state.doing !== 'sampling') {
      for (const [place, shown] of content.columns.entries()) {
        const column = columns[place];
        if (!column || column.adapter !== shown.adapter) continue;
        say(column.prompt, content.prompt);
        say(column.numbers, shown.facts);
        column.body.replaceChildren(...shown.runs.map(([text, differs]) => (differs ? el('ins', {}, text) : text)));
      }
    }
    changes.set(content.report);
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
