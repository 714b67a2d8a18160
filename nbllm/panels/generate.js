// The sampling panel. Its half in the kernel is generate.py, which names the messages.

const fixed = (digits) => (value) => value.toFixed(digits);
const SLIDERS = [
  { key: 'temperature', label: 'temperature', low: 0, high: 2, step: 0.05, format: fixed(2) },
  { key: 'top_p', label: 'top-p', low: 0, high: 1, step: 0.01, format: fixed(2) },
  {
    key: 'top_k',
    label: 'top-k',
    low: 0,
    high: 200,
    step: 1,
    format: (value) => (value ? String(value) : 'off'),
    read: (text) => (text === 'off' ? 0 : Math.round(Number(text))),
  },
  { key: 'min_p', label: 'min-p', low: 0, high: 0.5, step: 0.01, format: fixed(2) },
  { key: 'repetition_penalty', label: 'repetition', low: 1, high: 2, step: 0.01, format: fixed(2) },
];
const ENDS = { eos: 'end of text', length: 'length', stop: 'stop text', context: 'full context', interrupted: 'being stopped' };

function samplingFacts(state) {
  if (state.doing === 'waiting') return ['waiting for a cell that uses the model'];
  const { first_token_ms: first, tokens_per_s: speed, tokens, stop_reason: end } = state.facts || {};
  const facts = [];
  if (isNumber(first)) facts.push(`first token ${count(first)} ms`);
  if (isNumber(speed)) facts.push(`${count(speed)} tokens/s`);
  if (isNumber(tokens)) facts.push(`${count(tokens)} tokens`, `ended by ${ENDS[end] || end}`);
  if (!facts.length && state.doing === 'sampling') facts.push('sampling…');
  return facts;
}

function sharedLength(a, b) {
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i++;
  return i;
}

function render({ model, el: host }) {
  let state = { settings: {}, facts: {}, doing: 'idle' };
  let prompt = '';
  let text = '';
  let finished = null; // the last sampling that came to its end: {prompt, text}
  let before = null; // its text, where the prompt was the same
  let job = -1;
  let changed = {};

  const chip = el('span', { class: 'nbllm-chip' });
  const facts = el('span', { class: 'nbllm-dim', role: 'status' });
  const sampleButton = el('button', { type: 'button', title: 'Ctrl+Enter in the prompt', onclick: () => sample() }, 'Sample');
  const stopButton = el('button', { type: 'button', class: 'bad', onclick: () => link.send({ do: 'stop' }) }, 'Stop');
  const copyButton = el('button', { type: 'button', onclick: () => link.send({ do: 'cell', prompt: promptField.value }) }, 'Copy as cell');
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });

  const give = debounce(120, () => {
    link.send({ do: 'settings', value: changed, prompt: promptField.value, sample: promptField.value !== '' || text !== '' });
    changed = {};
  });
  const change = (key) => (value) => {
    changed[key] = value;
    give();
  };
  const sliders = Object.fromEntries(
    SLIDERS.map(({ key, ...options }) => [key, slider({ ...options, change: change(key) })])
  );
  const numberField = (key, label, least) => {
    const field = el('input', { type: 'number', min: least, step: 1, 'aria-label': label });
    field.addEventListener('change', () => Number.isInteger(field.valueAsNumber) && change(key)(field.valueAsNumber));
    return field;
  };
  const fields = {
    seed: numberField('seed', 'seed', 0),
    max_new_tokens: numberField('max_new_tokens', 'most new tokens', 1),
  };
  const promptField = el('textarea', { rows: 2, 'aria-label': 'prompt', placeholder: 'Write a prompt, then press Ctrl+Enter' });
  promptField.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      sample();
    }
  });
  const outputLabel = el('div', { class: 'nbllm-label nbllm-gap' });
  const output = el('div', { class: 'nbllm-mono nbllm-output', tabindex: '0', role: 'region', 'aria-label': 'sampled text', 'aria-live': 'off' });
  const cellField = el('textarea', { rows: 1, readonly: true, 'aria-label': 'the cell that samples this again' });
  const cell = el('div', { class: 'nbllm-gap', hidden: true }, el('div', { class: 'nbllm-label' }, 'as a cell'), cellField);

  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Sampling', 'data-lm-suppress-shortcuts': 'true', hidden: true });
  root.append(
    el(
      'div',
      { class: 'nbllm-head' },
      el('strong', {}, 'Sampling'),
      chip,
      el('div', { class: 'nbllm-tail short' }, facts, el('span', { class: 'nbllm-actions' }, stopButton, sampleButton, copyButton))
    ),
    error,
    note,
    el(
      'div',
      { class: 'nbllm-body nbllm-columns nbllm-generate' },
      el(
        'div',
        {},
        ...SLIDERS.map(({ key }) => sliders[key].root),
        el('div', { class: 'nbllm-fields' }, el('span', {}, 'seed'), fields.seed, el('span', {}, 'new tokens'), fields.max_new_tokens),
        el('div', { class: 'nbllm-label nbllm-gap' }, 'the same random numbers at every setting')
      ),
      el('div', {}, el('div', { class: 'nbllm-label' }, 'prompt'), promptField, outputLabel, output, cell)
    )
  );
  host.append(root);

  function sample() {
    link.send({ do: 'sample', prompt: promptField.value });
  }

  function showText() {
    const done = state.doing === 'idle';
    const common = before === null ? text.length : sharedLength(before, text);
    const parts = [el('span', { class: 'prompt' }, prompt), text.slice(0, common)];
    if (common < text.length) parts.push(el('span', { class: 'changed' }, text.slice(common)));
    output.replaceChildren(...parts);
    const same = before !== null && done && before === text;
    say(outputLabel, same ? 'text: nothing changed' : common < text.length ? 'text, marked from where it changed' : 'text');
  }

  function show(force = false) {
    for (const [key, one] of Object.entries(sliders)) if (!(key in changed)) one.set(state.settings[key], force);
    for (const [key, field] of Object.entries(fields)) {
      if (document.activeElement !== field && key in state.settings) field.value = state.settings[key];
    }
    say(chip, state.model + (state.greedy ? ' · greedy' : ''));
    sayFacts(facts, samplingFacts(state));
    error.hidden = !state.error;
    say(error, state.error || '');
    stopButton.hidden = state.doing === 'idle';
    output.setAttribute('aria-busy', String(state.doing !== 'idle'));
    showText();
  }

  function take(content) {
    const { settings, greedy, doing, facts: numbers, error: line, model: name } = content;
    state = { settings, greedy, doing, facts: numbers, error: line, model: name };
    if (doing === 'idle' && isNumber(numbers.tokens)) finished = { prompt, text };
    show(Boolean(line));
  }

  function receive(content) {
    if (content.kind === 'snapshot') {
      ({ prompt, text, job } = content);
      before = null;
      promptField.value = prompt;
      root.hidden = false;
      hideFace(root, content.face);
      take(content);
    } else if (content.kind === 'state') {
      take(content);
    } else if (content.kind === 'begin') {
      before = finished?.prompt === content.prompt ? finished.text : null;
      ({ job, prompt } = content);
      text = '';
    } else if (content.kind === 'text' && content.job === job) {
      text += content.text;
      showText();
    } else if (content.kind === 'cell') {
      cellField.value = content.text;
      cell.hidden = false;
      cellField.style.height = 'auto';
      cellField.style.height = `${Math.min(300, cellField.scrollHeight + 4)}px`;
      cellField.focus();
      cellField.select();
      const done = () => {
        say(copyButton, 'Copied');
        setTimeout(() => say(copyButton, 'Copy as cell'), 1500);
      };
      navigator.clipboard?.writeText(content.text).then(done, () => {}); // without the right, it stands selected
    }
  }

  function silence(gone) {
    note.hidden = !gone;
    say(note, gone ? 'No word from the kernel. Run %llm_panel generate again.' : '');
  }

  const link = connect(model, { receive, silence });
  link.keep(false); // nothing streams by itself, so no sign of life is needed
  return () => link.end();
}

export default { render };
