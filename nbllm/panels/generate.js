// The sampling panel. Its half in the kernel is generate.py, which names the messages.

const ENDS = { eos: 'end of text', length: 'length', stop: 'stop text', context: 'full context', interrupted: 'being stopped' };

function samplingFacts(state) {
  if (state.doing === 'waiting') return ['waiting for a cell that uses the model'];
  if (state.doing === 'sampling') return ['sampling…'];
  const { first_token_ms: first, tokens_per_s: speed, reused, compiled, tokens, stop_reason: end } = state.facts;
  const facts = [];
  if (isNumber(first)) facts.push(`first token ${count(first)} ms`);
  if (speed) facts.push(`${count(speed)} tokens/s`);
  if (reused) facts.push(`${count(reused)} prompt tokens reused`);
  if (compiled === true || compiled === false) facts.push(compiled ? 'compiled' : 'eager');
  if (isNumber(tokens)) facts.push(tokensText(tokens), `ended by ${ENDS[end] || end}`);
  return facts;
}

function render({ model, el: host }) {
  let state = { settings: {}, facts: {}, doing: 'idle', seen: null };
  let shown = { prompt: '', branch: null };
  let finished = null; // the last text that came to its end: {prompt, tokens}
  let job = -1;

  const chip = el('span', { class: 'nbllm-chip' });
  const facts = el('span', { class: 'nbllm-dim', role: 'status' });
  const button = (label, act, more = {}) => el('button', { type: 'button', onclick: act, ...more }, label);
  const sampleButton = button('Sample', () => sample(), { title: 'Ctrl+Enter in the prompt' });
  const stopButton = button('Stop', () => link.send({ do: 'stop' }), { class: 'bad' });
  const pinButton = button('Pin', () => link.send({ do: 'pin' }), { title: 'put this text aside with its settings' });
  const copyButton = button('Copy as cell', () => link.send({ do: 'cell' }));
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });

  const any = () => promptField.value !== '' || text.tokens.length > 0;
  const sliders = settingSliders((value) => link.send({ do: 'settings', value, prompt: promptField.value, sample: any() }));
  const pickers = modelPickers({
    choose: (value) => link.send({ do: 'source', value, prompt: promptField.value, sample: any() }),
    look: () => link.send({ ask: 'choices' }),
  });
  const promptField = el('textarea', { rows: 2, 'aria-label': 'prompt', placeholder: 'Write a prompt, then press Ctrl+Enter' });
  promptField.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      sample();
    }
  });

  const alternatives = new Alternatives();
  const text = new TokenText({
    label: 'sampled text',
    point: (place, node, how) => alternatives.point(text, place, node, how, (id) => fork(place, id)),
    leave: () => alternatives.leave(),
  });
  const colour = colourChoice((name) => link.send({ do: 'colour', value: name }));
  const caption = el('div', { class: 'nbllm-label' });
  const pins = new Pins({
    alternatives,
    restore: (pin) => {
      sliders.set(pin.settings, true);
      link.send({ do: 'restore', pin: pin.id });
    },
    remove: (pin) => link.send({ do: 'unpin', pin: pin.id }),
  });
  const branches = new Branches({ go: (id) => link.send({ do: 'go', branch: id }) });
  const cellField = el('textarea', { rows: 1, readonly: true, 'aria-label': 'the cell that samples this again' });
  cellField.addEventListener('keydown', (event) => event.stopPropagation());
  const cell = el('div', { class: 'nbllm-gap', hidden: true }, el('div', { class: 'nbllm-label' }, 'as a cell'), cellField);

  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Sampling', 'data-lm-suppress-shortcuts': 'true', hidden: true });
  const actions = el('span', { class: 'nbllm-actions' }, stopButton, sampleButton, pinButton, copyButton);
  const texts = el('div', { class: 'nbllm-texts' }, el('div', {}, caption, text.root), pins.root);
  root.append(
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Sampling'), chip, el('div', { class: 'nbllm-tail' }, facts, actions)),
    error,
    note,
    el(
      'div',
      { class: 'nbllm-body nbllm-columns nbllm-generate' },
      el('div', {}, sliders.root, el('div', { class: 'nbllm-label' }, 'the same random numbers at every setting'), pickers.root),
      el('div', {}, el('div', { class: 'nbllm-label' }, 'prompt'), promptField, colour.root, texts, branches.root, cell)
    ),
    alternatives.root
  );
  host.append(root);

  function sample() {
    link.send({ do: 'sample', prompt: promptField.value });
  }

  function fork(at, id) {
    text.focus(at, { quiet: true });
    link.send({ do: 'fork', branch: shown.branch, at, id });
  }

  // What the text is compared with: the one before, and the settings as they stand now.
  function captionFacts() {
    const said = [];
    const other = state.seen ? differences(state.seen, state.settings) : [];
    if (state.seen_model && state.seen_model !== state.model) other.push(state.seen_model);
    if (state.doing === 'idle' && other.length && text.tokens.length) said.push(`sampled at ${other.join(', ')}`);
    const before = text.before;
    if (!before?.length) return ['text', ...said];
    const shared = sharedTokens(before, text.tokens);
    if (shared < text.tokens.length) said.push(`changed from token ${count(shared + 1)} on`);
    else if (state.doing === 'idle') said.push(shared < before.length ? 'shorter than before' : 'nothing changed');
    return ['text', ...said];
  }

  function showText() {
    text.prompt(shown.prompt);
    sayFacts(caption, captionFacts());
    pinButton.disabled = !text.tokens.length || pins.count > 3;
    if (state.doing !== 'idle') return;
    pins.compare({ ...shown, tokens: text.tokens, settings: state.seen || state.settings, model: state.seen_model || state.model });
  }

  function show() {
    sliders.set(state.settings, Boolean(state.error)); // what was refused goes back
    pickers.set(state.source);
    colour.set(state.colour);
    text.paint(state.colour);
    pins.paint(state.colour);
    say(chip, state.model + (state.greedy ? ' · greedy' : ''));
    sayFacts(facts, samplingFacts(state));
    error.hidden = !state.error;
    say(error, state.error || '');
    stopButton.hidden = state.doing === 'idle';
    text.root.setAttribute('aria-busy', String(state.doing !== 'idle'));
    texts.classList.toggle('several', pins.count > 0);
    showText();
  }

  function take(content) {
    state = content;
    if (state.doing === 'idle' && isNumber(state.facts.tokens)) finished = { ...shown, tokens: text.tokens.slice() };
    show();
  }

  // Another text, or the same one from token `keep` on.
  function begin(content, keep) {
    alternatives.hide();
    const comparable = keep !== null && finished?.prompt === content.prompt;
    ({ job } = content);
    shown = { prompt: content.prompt, branch: content.branch };
    text.before = comparable ? finished.tokens : null;
    text.cut(keep ?? 0);
  }

  function showCell(content) {
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

  function receive(content, buffers) {
    if (content.kind === 'snapshot') {
      begin(content, null);
      promptField.value = content.typed;
      text.append(readTokens(content, buffers[0]));
      pins.set(content.pins, buffers.slice(1), content.colour);
      branches.set(content.rows);
      root.hidden = false;
      hideFace(root, content.face);
      take(content);
    } else if (root.hidden) {
      return; // the snapshot will have it
    } else if (content.kind === 'state') {
      take(content);
    } else if (content.kind === 'begin') {
      if (content.keep > text.tokens.length) link.ask();
      else begin(content, content.keep);
    } else if (content.kind === 'tokens' && content.job === job) {
      if (content.at !== text.tokens.length) return link.ask(); // one was missed
      text.append(readTokens(content, buffers[0]));
      showText();
    } else if (content.kind === 'shown') {
      begin(content, null);
      promptField.value = content.prompt;
      text.append(readTokens(content, buffers[0]));
      finished = { ...shown, tokens: text.tokens.slice() };
    } else if (content.kind === 'tree') {
      branches.set(content.rows);
    } else if (content.kind === 'pins') {
      pins.set(content.pins, buffers, state.colour);
      show();
    } else if (content.kind === 'cell') {
      showCell(content);
    }
  }

  function silence(gone) {
    note.hidden = !gone;
    say(note, gone ? 'No word from the kernel. Run %llm_panel generate again.' : '');
  }

  const link = connect(model, { receive, silence });
  link.keep(false); // nothing streams by itself, so no sign of life is needed
  return () => {
    alternatives.destroy();
    link.end();
  };
}

export default { render };
