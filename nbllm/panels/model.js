// The model panel. Its half in the kernel is model.py, which names the messages; model_drawing.py makes the picture.

const SVG = 'http://www.w3.org/2000/svg';

function shape([tag, attributes, text]) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

function render({ model, el: host }) {
  let parts = {};
  let state = null;
  let boxes = []; // of the parts, in the order of the picture
  let wanted = null; // what was asked for last

  const chip = el('span', { class: 'nbllm-chip' });
  const facts = el('span', { class: 'nbllm-dim', role: 'status' });
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });
  const picture = el('div', { class: 'nbllm-model' });
  const title = el('div', {});
  const cost = el('div', { class: 'nbllm-dim' });
  const weights = el('div', { 'aria-live': 'polite' });
  const soon = debounce(120, (n) => look(state.chosen, numbers()[n]));
  const numbers = () => parts[state?.chosen]?.layers ?? [];
  const along = slider({
    label: 'layer', low: 0, high: 1, step: 1,
    format: (n) => String(numbers()[Math.min(n, numbers().length - 1)] ?? ''),
    read: (text) => numbers().indexOf(Number(text)), change: (n) => n >= 0 && soon(n),
  });
  const hint = el('div', { class: 'nbllm-label' }, 'choose a part for the statistics of its weights; arrow keys move');
  const details = el('div', {}, hint, title, cost, along.root, weights);
  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Model', 'data-lm-suppress-shortcuts': 'true', hidden: true },
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Model'), chip, facts),
    error, note,
    el('div', { class: 'nbllm-body nbllm-columns nbllm-architecture' }, picture, details));
  host.append(root);

  function look(part, layer) {
    wanted = part;
    mark();
    link.send({ do: 'look', part, layer: layer ?? null });
  }

  function choose(part) {
    const layers = parts[part].layers;
    look(part, layers.includes(state?.layer) ? state.layer : layers[0]);
  }

  function mark() {
    const at = wanted ?? state?.chosen ?? boxes[0]?.part;
    for (const box of boxes) {
      const chosen = box.part === (wanted ?? state?.chosen);
      box.node.classList.toggle('chosen', chosen);
      box.node.setAttribute('aria-pressed', String(chosen));
      box.node.setAttribute('tabindex', box.part === at ? '0' : '-1');
    }
  }

  function draw(drawing) {
    const svg = shape(['svg', { viewBox: `0 0 ${drawing.width} ${drawing.height}`, role: 'group', 'aria-label': 'parts in the order they run' }, '']);
    svg.append(...drawing.lines.map(shape));
    boxes = [];
    for (const group of drawing.groups) {
      const node = shape(['g', {}, '']);
      node.append(...group.shapes.map(shape));
      if (group.part !== null) {
        node.setAttribute('class', `part ${group.kind}`);
        node.setAttribute('role', 'button');
        node.setAttribute('aria-label', group.label);
        node.addEventListener('click', () => {
          node.focus();
          choose(group.part);
        });
        boxes.push({ part: group.part, node });
      }
      svg.append(node);
    }
    svg.addEventListener('keydown', (event) => {
      const at = boxes.findIndex(({ node }) => node === event.target);
      const to = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: boxes.length - 1, Enter: at, ' ': at }[event.key];
      if (at < 0 || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      const next = boxes[Math.min(boxes.length - 1, Math.max(0, to))];
      next.node.focus();
      choose(next.part);
    });
    picture.replaceChildren(svg);
  }

  function tell() {
    const part = parts[state.chosen];
    hint.hidden = Boolean(part);
    along.root.hidden = !part || part.layers.length < 2;
    if (!part) return;
    title.replaceChildren(el('strong', {}, part.title));
    say(cost, part.facts.join(' · '));
    if (part.layers.length > 1) {
      const range = along.root.querySelector('input');
      range.max = part.layers.length - 1;
      const at = Math.max(0, part.layers.indexOf(state.layer));
      along.set(at);
      range.style.setProperty('--fill', `${(100 * at) / range.max}%`);
    }
    const blocks = state.weights.map((weight) => {
      const chart = shape(['svg', { viewBox: '0 0 200 40', role: 'img', 'aria-label': 'histogram' }, '']);
      chart.append(shape(['path', { d: weight.histogram }, '']));
      return el('div', { class: 'nbllm-model-weight' }, el('span', { class: 'nbllm-mono' }, weight.name), chart,
        ...weight.lines.map((line) => el('div', { class: 'nbllm-dim' }, line)));
    });
    if (blocks.length) blocks.unshift(el('div', { class: 'nbllm-label nbllm-gap' }, 'bars by the root of counts'));
    if (part.more) blocks.push(el('div', { class: 'nbllm-label nbllm-gap' }, `and ${count(part.more)} more weights`));
    weights.replaceChildren(...blocks);
  }

  function receive(content) {
    if (content.kind !== 'snapshot' && root.hidden) return; // the snapshot will have it
    state = content.state;
    if (content.kind === 'snapshot') {
      root.hidden = false;
      hideFace(root, content.face);
      parts = content.parts;
      say(chip, content.model);
      facts.kept = content.facts;
      draw(content.drawing);
    }
    if (!state.doing) wanted = null;
    error.hidden = !state.error;
    say(error, state.error);
    say(facts, state.doing || facts.kept);
    mark();
    tell();
  }

  function silence(gone) {
    note.hidden = !gone;
    say(note, gone ? 'No word from the kernel. Run %llm_model again.' : '');
  }

  const link = connect(model, { receive, silence });
  link.keep(false);
  return () => link.end();
}

export default { render };
