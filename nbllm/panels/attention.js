// The attention panel. Its half in the kernel is attention.py, which names the messages.

async function inflate(view) {
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const floats = (view) => new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));

function render({ model, el: host }) {
  let state = null;
  let sides = [];
  let palette = null;
  let waiting = false; // for a map
  let next = null; // the head to ask for after it
  let ended = false;

  const chip = el('span', { class: 'nbllm-chip' });
  const facts = el('span', { class: 'nbllm-dim', role: 'status' });
  const button = (label, act, more = {}) => el('button', { type: 'button', onclick: act, ...more }, label);
  const offButton = button('Switch head off', () => link.send({ do: 'off', layer: state.layer, head: state.head }));
  const scaleButton = button('Scale by row', () => scaleByRow(), { 'aria-pressed': 'false' });
  const zoomPick = el('select', { 'aria-label': 'tokens shown', onchange: () => zoom(Number(zoomPick.value)) });
  zoomPick.addEventListener('keydown', (event) => event.stopPropagation());
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });

  const sheet = new HeadSheet({ choose: (layer, head) => choose(layer, head) });
  const table = new HeadTable({ choose: (layer, head) => choose(layer, head) });
  const keys = keyBars();
  const lines = new TokenLines({ pin: (query) => pin(query) });
  const lookRow = debounce(60, (query) => link.send({ do: 'row', query }));
  const maps = [0, 1, 2].map(
    (number) =>
      new AttentionMap({
        label: () => (number === 2 ? 'second − first' : sides.length > 1 ? sides[number].model : mapName()),
        pin: (query) => pin(query),
        look: (query) => number < 2 && lookRow(query),
      })
  );
  const ablation = ablationBars({
    back: (layer, head) => link.send({ do: 'off', layer, head }),
    clear: () => link.send({ do: 'off', all: true }),
  });
  const source = lookAt({
    look: (wanted) => link.send({ do: 'look', wanted }),
    compare: (wanted) => link.send({ do: 'compare', wanted }),
    choices: () => link.send({ ask: 'choices' }),
  });

  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Attention', 'data-lm-suppress-shortcuts': 'true', hidden: true });
  const actions = el('span', { class: 'nbllm-actions' }, zoomPick, scaleButton, offButton);
  const mapColumn = el('div', { class: 'nbllm-maps' }, ...maps.map((map) => map.root));
  const main = el(
    'div',
    { class: 'nbllm-columns nbllm-attention-main' },
    mapColumn,
    el('div', { class: 'nbllm-beside' }, keys.root, ablation.root, table.root)
  );
  const heads = el('div', {}, el('div', { class: 'nbllm-label' }, 'layer ↓ head → Σ rollout'), sheet.root);
  const right = el('div', {}, main, lines.root, source.root);
  const body = el('div', { class: 'nbllm-body nbllm-columns nbllm-attention' }, heads, right);
  root.append(
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Attention'), chip, el('div', { class: 'nbllm-tail' }, facts, actions)),
    error,
    note,
    body
  );
  host.append(root);

  const mapName = () => (state && sides[0] ? headName(sides[0], state.layer, state.head) : '');

  // One request at a time: while a map is on its way only the newest wish is kept.
  function choose(layer, head) {
    sheet.select(layer, head, state.off);
    table.select(layer, head);
    if (waiting && Date.now() - waiting < 10000) {
      next = [layer, head];
      return;
    }
    waiting = Date.now();
    link.send({ do: 'head', layer, head });
  }

  function pin(query) {
    state.pinned = query;
    for (const map of maps) {
      map.pinned = query;
      if (map.data) map.draw();
    }
    link.send({ do: 'pin', query });
    if (!maps[0].rows.has(query)) link.send({ do: 'row', query });
    showRow();
  }

  function showRow() {
    const { data } = maps[0];
    if (!data) return;
    const query = Math.min(state.pinned, data.tokens.length - 1);
    const row = maps[0].rows.get(query) || Float32Array.from(data.tokens, (_, key) => mapWeight(data, query, key));
    keys.show(data.tokens, query, row);
    requestAnimationFrame(() => {
      if (maps[0].data !== data) return;
      lines.set(data.tokens); // a long text's many tokens wait until the map is on the screen
      lines.show(query, row);
    });
  }

  function scaleByRow() {
    const on = scaleButton.getAttribute('aria-pressed') !== 'true';
    scaleButton.setAttribute('aria-pressed', String(on));
    for (const map of maps) {
      Object.assign(map, { perRow: on, chosen: true });
      map.draw();
    }
  }

  function zoom(size) {
    for (const map of maps) if (map.data) map.zoom(size || Infinity, map.cursor?.[0] ?? state.pinned);
  }

  function fillZoom(total) {
    const sizes = [256, 64, 32].filter((size) => size < total);
    zoomPick.hidden = !sizes.length;
    if (zoomPick.total === total) return;
    zoomPick.total = total;
    zoomPick.replaceChildren(el('option', { value: '0' }, `all ${count(total)} tokens`), ...sizes.map((size) => el('option', { value: size }, `${size} tokens`)));
    for (const map of maps) map.window = { from: 0, size: Infinity };
  }

  function factsNow() {
    if (state.doing === 'waiting') return ['waiting for a cell that uses the model'];
    if (state.doing === 'looking') return ['looking…'];
    if (state.doing === 'computing') return ['computing the next token…'];
    if (!sides.length) return [];
    const first = sides[0];
    const rollout = state.head === first.heads;
    const where = rollout ? [headName(first, state.layer, state.head)] : [`layer ${first.layers[state.layer]}`, `head ${state.head}`];
    const score = state.score ? [`${state.score.name} ${state.score.value.toFixed(2)}`] : [];
    const at = (state.layer * first.heads + state.head) * 6;
    const more = rollout || !first.scores ? [] : [`entropy ${first.scores[at + 4].toFixed(2)} nats`, `distance ${first.scores[at + 5].toFixed(1)} tokens`];
    return [...where, ...score, ...more, `${count(first.tokens.length)} tokens`];
  }

  function show() {
    say(chip, sides.map((side) => side.model).join('  ⟷  ') || 'no text yet');
    sayFacts(facts, factsNow());
    error.hidden = !state.error;
    say(error, state.error || '');
    source.set(sides, state.choices);
    heads.hidden = main.hidden = lines.root.hidden = !sides.length;
    body.classList.toggle('empty', !sides.length);
    offButton.hidden = scaleButton.hidden = !sides.length;
    root.setAttribute('aria-busy', String(state.doing !== 'idle'));
    if (!sides.length) {
      zoomPick.hidden = true;
      return;
    }
    const isOff = state.off.some(([layer, head]) => layer === state.layer && head === state.head);
    offButton.disabled = state.head === sides[0].heads;
    say(offButton, isOff ? 'Switch head on' : 'Switch head off');
    if (!next) {
      sheet.select(state.layer, state.head, state.off);
      table.select(state.layer, state.head);
    }
    ablation.show(sides[0], state.off, state.next, state.predicts);
    fillZoom(Math.max(...sides.map((side) => side.tokens.length)));
  }

  async function takeSides(content, named) {
    sides = content.sides;
    if (named.palette) {
      const bytes = new Uint8Array(named.palette.buffer, named.palette.byteOffset, 768);
      palette = Uint32Array.from({ length: 256 }, (_, i) => (255 << 24) | (bytes[3 * i + 2] << 16) | (bytes[3 * i + 1] << 8) | bytes[3 * i]);
    }
    if (!sides.length) return;
    sides.forEach((side, number) => (side.scores = floats(named[`scores${number}`])));
    table.set(sides[0], sides[0].scores, content.columns);
    sheet.set(sides[0], await inflate(named.thumbnails0), palette);
  }

  async function takeMap({ strides }, named) {
    const read = await Promise.all(
      sides.map(async (side, number) => {
        if (!strides[number]) return null;
        const codes = await inflate(named[`map${number}`]);
        const total = side.tokens.length;
        const stats = floats(named[`stats${number}`]);
        const n = Math.round(Math.sqrt(codes.length));
        const [top, entropy, distance] = [0, 1, 2].map((i) => stats.subarray(i * total, (i + 1) * total));
        let causal = true;
        for (let row = 0; causal && row < n; row++) for (let column = row + 1; causal && column < n; column++) causal = !codes[row * n + column];
        return { tokens: side.tokens, n, stride: strides[number], codes, top, entropy, distance, causal };
      })
    );
    if (read[0] && read[1] && sides[1].same) read[2] = { ...read[0], minus: read[1] };
    maps.forEach((map, number) => {
      map.root.hidden = !read[number];
      if (!read[number]) map.data = null;
    });
    mapColumn.classList.toggle('several', Boolean(read[1]));
    main.classList.toggle('several', Boolean(read[1]));
    maps.forEach((map, number) => {
      map.pinned = state.pinned;
      if (read[number]) map.set(read[number], palette);
    });
    scaleButton.setAttribute('aria-pressed', String(maps[0].perRow));
    waiting = false;
    if (next) {
      const [layer, head] = next;
      next = null;
      choose(layer, head);
    }
  }

  function takeRows({ layer, head, query }, named) {
    if (layer !== state.layer || head !== state.head) return;
    for (const number of [0, 1]) {
      if (named[`row${number}`] && maps[number].data) maps[number].exact(query, floats(named[`row${number}`]));
    }
  }

  async function take(content, buffers) {
    if (ended || (content.kind !== 'snapshot' && root.hidden)) return; // the snapshot will have it
    const named = Object.fromEntries((content.names || []).map((name, i) => [name, buffers[i]]));
    if (content.state) state = content.state;
    if (content.kind === 'snapshot') {
      root.hidden = false;
      hideFace(root, content.face);
    }
    if (content.sides) await takeSides(content, named);
    if (content.state) show();
    if (content.map) await takeMap(content.map, named);
    if (content.rows) takeRows(content.rows, named);
    if (content.map || content.rows) showRow();
  }

  let turn = Promise.resolve();
  const receive = (content, buffers) => {
    turn = turn.then(() => take(content, buffers)).catch((problem) => {
      error.hidden = false;
      say(error, `The page couldn't show this: ${problem.message}`);
    });
  };

  const redraw = () => {
    sheet.draw();
    for (const map of maps) if (map.data && !map.root.hidden) map.draw();
    lines.draw();
  };
  const unwatch = watchLook(redraw);
  let width = 0;
  const sizes = new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    requestAnimationFrame(redraw);
  });
  sizes.observe(root);

  function silence(gone) {
    note.hidden = !gone;
    say(note, gone ? 'No word from the kernel. Run %llm_panel attention again.' : '');
  }

  const link = connect(model, { receive, silence });
  link.keep(false); // nothing streams by itself, so no sign of life is needed
  return () => {
    ended = true;
    unwatch();
    sizes.disconnect();
    link.end();
  };
}

export default { render };
