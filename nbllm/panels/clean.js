// The cleaning panel. Its half in the kernel is clean.py, which names the messages.

function render({ model, el: host }) {
  let stages = [];
  let number = -1;
  let handles = [];
  let shownHandle = 0;
  let turn = 0;
  let pending = null; // a move that waits for the answer to the one before
  let asked = false;
  let at = 0;
  let current = null; // the dropped document that is shown

  const button = (label, act, more = {}) => el('button', { type: 'button', onclick: act, ...more }, label);
  const size = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : bytes >= 1e3 ? `${count(bytes / 1e3)} kB` : `${bytes} B`);
  const chip = el('span', { class: 'nbllm-chip' });
  const said = el('span', { class: 'nbllm-dim' });
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });
  const warnings = el('div');
  const apply = button('Apply', () => {
    apply.disabled = reset.disabled = true;
    error.hidden = true;
    tell('Cleaning…');
    link.send({ do: 'apply' });
  }, { disabled: true });
  const reset = button('Reset', () => link.send({ do: 'reset' }), { disabled: true });
  const flow = el('div', { class: 'nbllm-flow', role: 'group', 'aria-label': 'documents, stage by stage' });
  const line = el('div', { class: 'nbllm-label nbllm-gap' });
  const counted = el('div', { role: 'status' });
  const why = el('div', { class: 'nbllm-dim' });
  const plots = el('div', { class: 'nbllm-clean-handles nbllm-gap' });
  const left = el('div');
  const right = el('div');
  const leftTitle = el('div', { class: 'nbllm-label nbllm-s2' });
  const rightTitle = el('div', { class: 'nbllm-label nbllm-s1' });
  const sides = el('div', { class: 'nbllm-columns nbllm-sides nbllm-gap' }, el('div', {}, leftTitle, left), el('div', {}, rightTitle, right));
  const matrix = el('div', { class: 'nbllm-matrix', tabindex: '0', role: 'region', 'aria-label': 'documents that two rules would drop' });
  const overlap = el('details', { class: 'nbllm-table nbllm-gap' }, el('summary', {}, 'overlap of rules'), matrix);
  const waiting = el('span', { class: 'nbllm-dim' });

  const choice = el('select', { 'aria-label': 'reason' });
  choice.addEventListener('change', () => document_(0));
  const back = button('◀', () => document_(at - 1), { 'aria-label': 'document before' });
  const next = button('▶', () => document_(at + 1), { 'aria-label': 'next document' });
  const place = el('span', { class: 'nbllm-dim' });
  const keep = el('input', { type: 'checkbox' });
  keep.addEventListener('change', () => current && link.send({ do: 'keep', id: current, on: keep.checked }));
  const keepLabel = el('label', {}, keep, ' keep it');
  const step = el('div', { class: 'nbllm-step' }, choice, back, next, place, keepLabel);
  const about = el('div', { class: 'nbllm-dim' });
  const one = el('div', { class: 'nbllm-mono nbllm-shown dropped one' });
  const droppedTitle = el('div', { class: 'nbllm-label' });
  const droppedPart = el('div', { class: 'nbllm-gap' }, droppedTitle, step, about, one);
  droppedPart.addEventListener('keydown', (event) => {
    if (event.target === choice) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    document_(at + by);
  });

  let rows = { stages: [], sources: [], languages: [] };
  const byReason = tableBehind('by stage and reason', ['stage', 'reason', 'documents', 'bytes'], () => rows.stages);
  const bySource = tableBehind('by source', ['source', 'in', 'dropped', 'out', 'bytes'], () => rows.sources);
  const byLanguage = tableBehind('by language', ['language', 'in', 'dropped', 'out', 'by'], () => rows.languages);

  const root = el('div', { class: 'nbllm nbllm-clean', role: 'group', 'aria-label': 'Cleaning', 'data-lm-suppress-shortcuts': 'true', hidden: true });
  root.append(
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Cleaning'), chip, el('div', { class: 'nbllm-tail' }, said, waiting, el('span', { class: 'nbllm-actions' }, reset, apply))),
    error,
    note,
    warnings,
    el('div', { class: 'nbllm-body' }, flow, byReason.root, bySource.root, byLanguage.root, line, counted, why, plots, sides, overlap, droppedPart)
  );
  host.append(root);

  const tell = (text) => {
    say(note, text);
    note.hidden = !text;
  };

  function drawFlow(data) {
    const most = Math.max(1, data.in[0]);
    const bars = [{ number: -1, name: 'in', out: data.in, dropped: [0, 0] }, ...data.stages];
    flow.replaceChildren(
      ...bars.map((stage, index) => {
        const share = (documents) => `${(documents / most) * 100}%`;
        const stay = el('div', { class: 'stay' });
        const gone = el('div', { class: 'gone' });
        const kept = el('div', { class: 'kept' });
        gone.style.height = share(stage.dropped[0]);
        kept.style.height = share(stage.out[0]);
        stay.append(gone, kept);
        const onward = el('div', { class: 'next' });
        onward.style.height = index + 1 < bars.length ? share(bars[index + 1].out[0]) : '0';
        const lost = stage.dropped[0] ? `−${count(stage.dropped[0])}` : index ? '0' : '';
        const label = index ? `${stage.name}: ${count(stage.dropped[0])} documents (${size(stage.dropped[1])}) dropped, ${count(stage.out[0])} (${size(stage.out[1])}) stay` : `${count(stage.out[0])} documents (${size(stage.out[1])}) came in`;
        const body = [el('div', { class: 'bar' }, stay, onward), el('div', { class: 'name' }, stage.name), el('div', { class: 'nbllm-s2' }, lost || '\u00a0'), el('div', {}, count(stage.out[0])), el('div', { class: 'nbllm-dim' }, size(stage.out[1]))];
        const more = { 'aria-label': label, title: label, 'aria-pressed': String(stage.number === number), 'data-number': stage.number };
        const made = button('', () => link.send({ do: 'stage', number: stage.number }), more);
        made.append(...body);
        if (!index) made.disabled = true;
        if (!index) made.style.opacity = '1';
        return made;
      })
    );
  }

  function showAll(data) {
    number = data.number;
    stages = data.stages;
    say(chip, data.name);
    sayFacts(said, [data.recipe, `${count(data.in[0])} → ${count(data.out[0])} documents`, `${size(data.in[1])} → ${size(data.out[1])}`]);
    warnings.replaceChildren(...data.warnings.map((text) => el('div', { class: 'nbllm-note' }, `⚠ ${text}`)));
    rows = {
      stages: data.stages.flatMap((stage) => stage.reasons.map(([reason, documents, bytes]) => [stage.name, reason, count(documents), size(bytes)])),
      sources: data.sources.map(([name, ...numbers]) => [name, ...numbers.slice(0, 3).map(count), size(numbers[3])]),
      languages: data.languages.map(([name, came, gone, out, by]) => [name, count(came), count(gone), count(out), by]),
    };
    for (const table of [byReason, bySource, byLanguage]) table.fill();
    byLanguage.root.hidden = !rows.languages.length;
    drawFlow(data);
    root.hidden = false;
  }

  function showStage(data, buffers) {
    const read = (kind, index) => new kind(buffers[index].buffer.slice(buffers[index].byteOffset, buffers[index].byteOffset + buffers[index].byteLength));
    number = data.number;
    pending = null;
    asked = false;
    for (const bar of flow.children) bar.setAttribute('aria-pressed', String(Number(bar.dataset.number) === number));
    const stage = stages.find((one) => one.number === number);
    say(line, stage ? `${stage.line}${data.handles.length ? ' · documents by score, heights as square roots; the line is the threshold' : ''}` : '');
    const often = (score) => data.handles.filter((one_) => one_.score === score).length > 1;
    for (const found of data.handles) found.title = found.score.replaceAll('_', ' ') + (often(found.score) ? `, ${found.argument}` : '');
    handles = data.handles.map((found, index) => new Histogram(found, read(Float64Array, 2 * index), read(Int32Array, 2 * index + 1), {
      change: (value, rest) => move(index, value, rest),
      choose: () => move(index, handles[index].limit, true),
    }));
    plots.replaceChildren(...handles.map((one) => one.root));
    requestAnimationFrame(() => handles.forEach((one) => one.draw()));
    const movable = handles.length > 0;
    for (const node of [counted, why, plots, sides]) node.hidden = !movable;
    overlap.hidden = data.overlap.length < 2;
    if (!overlap.hidden) drawMatrix(data.overlap, read(Int32Array, buffers.length - 1));
    choice.replaceChildren(el('option', { value: '' }, 'any reason'), ...(stage?.reasons ?? []).map(([reason, documents]) => el('option', { value: reason }, `${reason} (${count(documents)})`)));
    const some = stage?.reasons.length > 0;
    step.hidden = one.hidden = !some;
    say(droppedTitle, some ? 'dropped by this stage, one by one' : 'this stage dropped nothing');
  }

  function drawMatrix(reasons, values) {
    const wide = reasons.length + 1;
    const hit = reasons.map((_, index) => index).filter((index) => values[index * wide + index]);
    overlap.hidden = hit.length < 2;
    const cell = (a, b) => {
      const both = values[a * wide + b];
      const part = both / Math.max(1, values[a * wide + a]);
      const node = el('td', { class: both ? 'hit' : '', title: `${count(both)} of the ${count(values[a * wide + a])} that “${reasons[a]}” hits` }, count(both));
      node.style.setProperty('--w', `${Math.round(part * 45)}%`);
      return node;
    };
    const head = el('tr', {}, el('th', {}, ''), ...hit.map((index) => el('th', { scope: 'col' }, reasons[index])), el('th', { scope: 'col' }, 'alone'));
    const body = hit.map((a) => el('tr', {}, el('td', {}, reasons[a]), ...hit.map((b) => cell(a, b)), el('td', {}, count(values[a * wide + reasons.length]))));
    matrix.replaceChildren(el('table', {}, el('thead', {}, head), el('tbody', {}, ...body)));
  }

  // One move is on its way at a time; of those that come meanwhile the last is sent after it.
  function move(index, value, rest) {
    const { argument } = handles[index].found;
    handles.forEach((other, which) => {
      if (which !== index && other.found.argument === argument && other.limit !== value) {
        other.limit = value;
        other.show();
      }
    });
    if (rest) shownHandle = index;
    pending = { do: 'move', number, handle: index, value, rest: rest || Boolean(pending?.rest), turn: ++turn };
    if (!asked) sendMove();
  }

  function sendMove() {
    asked = Boolean(pending);
    if (pending) link.send(pending);
    pending = null;
  }

  function showCounted(data) {
    const [documents, bytes] = data.before;
    const share = (part) => `${((part / Math.max(1, data.in)) * 100).toFixed(1)} %`;
    const change = data.documents - documents;
    counted.replaceChildren(
      el('span', {}, `drops ${count(data.documents)} of ${count(data.in)} documents (${share(data.documents)}), ${size(data.bytes)}`),
      el('span', { class: 'nbllm-dim' }, change || bytes !== data.bytes ? ` · as cleaned: ${count(documents)}, ${size(bytes)} (${change > 0 ? '+' : '−'}${count(Math.abs(change))})` : ' · as cleaned')
    );
    say(why, data.reasons.map(([reason, number_]) => `${reason} ${count(number_)}`).join(' · '));
    if (data.turn === turn || !data.turn) sendMove();
    else if (asked) sendMove();
  }

  const asNodes = (pieces) =>
    pieces.map(([kind, text]) => (kind === 'mark' ? el('mark', {}, text) : kind === 'kept' ? el('ins', {}, text) : kind === 'dropped' ? el('del', {}, text) : document.createTextNode(text)));

  function showExamples(data) {
    const handle = handles[data.handle];
    if (!handle || data.number !== number) return;
    shownHandle = data.handle;
    handles.forEach((one, index) => one.shown.setAttribute('aria-pressed', String(index === shownHandle)));
    say(leftTitle, `just beyond ${handle.found.score.replaceAll('_', ' ')} ${handle.write(handle.limit) || '(no limit)'}: would go`);
    say(rightTitle, 'just within: would stay');
    const fill = (node, documents, kind) =>
      node.replaceChildren(
        ...(documents.length
          ? documents.map((one_) => el('div', {}, el('div', { class: 'nbllm-dim' }, `${handle.write(one_.value)} · ${one_.id}`), el('div', { class: `nbllm-mono nbllm-shown ${kind}` }, ...asNodes(one_.pieces))))
          : [el('div', { class: 'nbllm-dim' }, 'none')])
      );
    fill(left, data.dropped, 'dropped');
    fill(right, data.kept, 'kept');
  }

  const document_ = (wanted) => link.send({ do: 'document', reason: choice.value, at: wanted });

  function showDocument(data) {
    if (data.number !== number) return;
    current = data.of ? data.id : null;
    at = data.at;
    say(place, data.of ? `${count(data.at + 1)} of ${count(data.of)}` : 'none');
    back.disabled = !data.of || data.at === 0;
    next.disabled = !data.of || data.at + 1 >= data.of;
    keep.disabled = !data.of;
    keep.checked = Boolean(data.keep);
    say(about, data.of ? `${data.shown} · ${data.source} · ${data.why}${data.like ? ` · beside ${data.like}, which stays: blue is only there, vermilion only here` : ''}` : '');
    one.replaceChildren(...asNodes(data.pieces ?? []));
  }

  function receive(data, buffers) {
    if (data.kind === 'snapshot') {
      error.hidden = true;
      if (data.face) hideFace(root, data.face);
      showAll(data);
    } else if (data.kind === 'stage') showStage(data, buffers);
    else if (data.kind === 'counted' && data.number === number) showCounted(data);
    else if (data.kind === 'examples') showExamples(data);
    else if (data.kind === 'document') showDocument(data);
    else if (data.kind === 'waiting') {
      const parts = [...data.lines, ...(data.keep ? [`${data.keep} kept by hand`] : [])];
      say(waiting, data.changed ? parts.join(' · ') : '');
      waiting.hidden = !data.changed;
      apply.disabled = reset.disabled = !data.changed;
    } else if (data.kind === 'progress') tell(`Cleaning: ${data.stage}, ${count(data.done)}${data.total ? ` of ${count(data.total)}` : ''} documents`);
    else if (data.kind === 'applied') {
      tell(data.text);
      setTimeout(() => tell(''), 6000);
    } else if (data.kind === 'error') {
      say(error, data.text);
      error.hidden = false;
      asked = false;
      tell('');
      apply.disabled = reset.disabled = false;
    }
  }

  const link = connect(model, { receive, silence: (on) => root.classList.toggle('quiet', on) });
  const redraw = () => handles.forEach((one) => one.draw());
  const sizes = new ResizeObserver(redraw);
  sizes.observe(plots);
  const endLook = watchLook(redraw);
  return () => {
    link.end();
    sizes.disconnect();
    endLook();
  };
}

export default { render };
