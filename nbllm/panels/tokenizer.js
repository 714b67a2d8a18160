// The tokenizer panel. Its half in the kernel is tokenizer.py, which names the messages.

function render({ model, el: host }) {
  let turn = 0;
  let answered = 0;
  let data = { strips: [], segments: new Int32Array(0) };
  let facts = { corpus: false };
  const known = new Map(); // details by tokenizer and id
  let shown = null; // {which, id, index}

  const button = (label, act, more = {}) => el('button', { type: 'button', onclick: act, ...more }, label);
  const chip = el('span', { class: 'nbllm-chip' });
  const said = el('span', { class: 'nbllm-dim', role: 'status' });
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });
  const field = el('textarea', { rows: 3, 'aria-label': 'text', spellcheck: 'false', placeholder: 'Type a text' });
  const send = debounce(60, () => link.send({ do: 'text', text: field.value, turn: ++turn }));
  field.addEventListener('input', send);
  field.addEventListener('keydown', (event) => event.stopPropagation());

  const strips = new Strips({ point: (which, index, how) => point(which, index, how) });
  const legend = el('div', { class: 'nbllm-label nbllm-legend' });
  const add = el('select', { 'aria-label': 'put a tokenizer beside it' });
  add.addEventListener('change', () => {
    if (add.value) link.send({ do: 'add', name: add.value });
    add.value = '';
  });
  const notes = el('div', { class: 'nbllm-dim nbllm-gap nbllm-hints', tabindex: '0', role: 'region', 'aria-label': 'hints' });
  const vocabulary = new Vocabulary({
    search: (query, by, of) => link.send({ do: 'search', query, by, turn: of }),
    rows: (ids) => link.send({ do: 'rows', ids }),
    choose: (id) => look({ which: 0, id, index: null }),
  });
  const vocabularyButton = button('Vocabulary', () => vocabularyButton.setAttribute('aria-expanded', String(vocabulary.toggle())), { 'aria-expanded': 'false' });

  const rows = el('div', { class: 'nbllm-details' });
  const tree = el('div', { class: 'nbllm-mono nbllm-merges' });
  const live = el('div', { class: 'nbllm-hidden', 'aria-live': 'polite' });
  const countButton = button('Count in the corpus', () => {
    countButton.disabled = true;
    say(countButton, 'Counting…');
    link.send({ do: 'count', which: shown.which });
  }, { hidden: true });

  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Tokenizer', 'data-lm-suppress-shortcuts': 'true', hidden: true });
  root.append(
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Tokenizer'), chip, el('div', { class: 'nbllm-tail' }, said, el('span', { class: 'nbllm-actions' }, add, vocabularyButton))),
    error,
    note,
    el('div', { class: 'nbllm-body nbllm-columns nbllm-tokenizer' }, el('div', {}, field, legend, strips.root, notes, vocabulary.root), el('div', {}, rows, tree, countButton, live))
  );
  host.append(root);

  const name = (strip, index) => strip.names[strip.place(index)];

  let later = 0;
  function point(which, index, { hover = false, quiet = false }) {
    const strip = data.strips[which];
    if (!strip || index >= strip.count) return;
    const id = strip.ids[strip.place(index)];
    if (!hover && !quiet) say(live, `token ${count(index + 1)} of ${count(strip.count)}: ${name(strip, index)}, id ${id}`);
    cancelAnimationFrame(later); // many tokens may pass in one frame
    later = requestAnimationFrame(() => look({ which, id, index }));
  }

  const ask = debounce(40, () => shown && link.send({ do: 'details', which: shown.which, id: shown.id }));

  function look(token) {
    shown = token;
    const found = known.get(`${token.which} ${token.id}`);
    const strip = data.strips[token.which];
    const where = token.index === null ? [] : [['Place', `${count(token.index + 1)} of ${count(strip.count)}`], ['Bytes at', placeOf(strip, token.index)]];
    const basic = token.index === null ? [['Id', count(token.id)]] : [['Token', name(strip, token.index)], ['Id', count(token.id)]];
    const facts = [...(data.strips.length > 1 ? [['Of', strip.name]] : []), ...(found ? found.rows : basic), ...where];
    rows.replaceChildren(...facts.flatMap(([label, value]) => [el('span', { class: 'nbllm-dim' }, label), el('span', { class: 'nbllm-mono' }, value)]));
    tree.replaceChildren(...(found?.tree ?? []).map(([depth, text, id, rank]) => {
      const line = el('div', {}, el('span', { class: 'part' }, text), el('span', { class: 'nbllm-dim' }, rank === null ? ` ${id ?? ''}` : ` ${id ?? ''} · merge ${count(rank)}`));
      line.style.paddingLeft = `${depth * 12}px`;
      return line;
    }));
    countButton.hidden = !facts.length || !corpusIsThere() || !found || found.rows.some(([label]) => label === 'In the corpus');
    if (!found) ask();
  }

  const corpusIsThere = () => facts.corpus;

  function placeOf(strip, index) {
    const start = strip.numbers[4 * index + 1];
    const size = strip.sizes[strip.place(index)];
    return size ? `${count(start)} to ${count(start + size - 1)}` : count(start);
  }

  function take(content, buffers) {
    const before = data.strips.map((strip) => strip.name).join('\n');
    data = readStrips(content, buffers);
    facts = { corpus: content.corpus };
    error.hidden = true;
    const [first] = data.strips;
    if (data.strips.map((strip) => strip.name).join('\n') !== before) {
      known.clear();
      vocabulary.forget();
    }
    say(chip, `${first.name} · ${first.algorithm} · ${count(first.vocab_size)}`);
    const each = first.count ? [`${(first.characters / first.count).toFixed(1)} characters and ${(first.bytes / first.count).toFixed(1)} bytes a token`] : [];
    sayFacts(said, [`${count(first.count)} token${first.count === 1 ? '' : 's'}`, ...each, first.exact ? 'exact round trip' : 'round trip NOT exact']);
    const others = content.choices.filter((choice) => !data.strips.some((strip) => strip.name === choice));
    add.replaceChildren(el('option', { value: '' }, 'Compare…'), ...others.map((choice) => el('option', { value: choice }, choice)));
    add.disabled = !others.length || data.strips.length > 4;
    legend.hidden = data.strips.length < 2;
    const fewest = Math.min(...data.strips.map((strip) => strip.count));
    legend.replaceChildren(...data.strips.map((strip, which) => {
      const more = strip.count > fewest ? `, +${Math.round((strip.count / fewest - 1) * 100)} %` : ', fewest';
      const row = el('div', {}, `${which + 1}  ${strip.name}: ${count(strip.count)} tokens${more}${strip.exact ? '' : ', not exact'} `);
      if (which) row.append(button('remove', () => link.send({ do: 'remove', which }), { 'aria-label': `remove ${strip.name}` }));
      return row;
    }));
    notes.replaceChildren(...content.notes.map((text) => el('div', {}, `⚠ ${text}`)));
    strips.set(data);
    strips.tell(true);
    if (!first.count) {
      rows.replaceChildren();
      tree.replaceChildren();
    }
  }

  function receive(content, buffers) {
    if (content.kind === 'snapshot') {
      field.value = content.text;
      turn = answered = content.turn;
      root.hidden = false;
      hideFace(root, content.face);
      take(content, buffers);
    } else if (root.hidden) {
      return; // the snapshot will have it
    } else if (content.kind === 'strip') {
      if (content.turn < answered) return; // an older text
      answered = content.turn;
      take(content, buffers);
    } else if (content.kind === 'details') {
      known.set(`${content.which} ${content.id}`, content);
      if (shown?.id === content.id && shown.which === content.which) look(shown);
    } else if (content.kind === 'found') {
      vocabulary.found(content, buffers[0]);
    } else if (content.kind === 'rows') {
      vocabulary.rows(content);
    } else if (content.kind === 'counted') {
      known.clear();
      countButton.disabled = false;
      say(countButton, 'Count in the corpus');
      if (shown) look(shown);
    } else if (content.kind === 'error') {
      error.hidden = false;
      say(error, content.text);
      countButton.disabled = false;
      say(countButton, 'Count in the corpus');
    }
  }

  function silence(gone) {
    note.hidden = !gone;
    say(note, gone ? 'No word from the kernel. Run %llm_panel tokenizer again.' : '');
  }

  const link = connect(model, { receive, silence });
  link.keep(false);
  return () => {
    strips.destroy();
    link.end();
  };
}

export default { render };
