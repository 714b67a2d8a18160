// The live panel of a run. Its half in the kernel is train.py, which names the messages.

const BUTTONS = [
  ['resume', 'Resume', 'Resuming…', ''],
  ['pause', 'Pause', 'Pausing…', ''],
  ['checkpoint', 'Checkpoint', 'Writing…', ''],
  ['stop', 'Stop', 'Stopping…', 'bad'],
];
const ALLOWED = {
  starting: ['stop'],
  running: ['pause', 'checkpoint', 'stop'],
  paused: ['resume', 'checkpoint', 'stop'],
  stopped: ['resume'],
  failed: ['resume'],
  died: ['resume'],
  done: [],
};

function legendText(head) {
  if (!isNumber(head.eval_loss)) return 'held-out –';
  const beside = [];
  if (isNumber(head.bits)) beside.push(`${loss(head.bits)} bits a byte`);
  if (isNumber(head.reference_bits)) beside.push(`xz −9 needs ${loss(head.reference_bits)}`);
  return `held-out ${loss(head.eval_loss)}${beside.length ? ` (${beside.join('; ')})` : ''}`;
}

function runFacts(head) {
  const facts = [];
  if (isNumber(head.left_s)) facts.push(`${duration(head.left_s)} left`);
  else if (head.over && isNumber(head.seconds)) facts.push(duration(head.seconds));
  if (isNumber(head.tokens_per_s)) facts.push(`${count(head.tokens_per_s)} tokens/s`);
  if (head.memory) facts.push(head.memory);
  if (head.where) facts.push(head.where);
  return facts;
}

// The highest point that stands out from the curve: more than four times the median, after the first twentieth.
function spike(series) {
  const all = [];
  series.each((step, value) => Number.isFinite(value) && all.push([step, value]));
  const settled = all.slice(Math.ceil(all.length / 20));
  if (settled.length < 20) return null;
  const median = settled.map((point) => point[1]).sort((a, b) => a - b)[settled.length >> 1];
  const top = settled.reduce((best, point) => (point[1] > best[1] ? point : best));
  return top[1] > 4 * median ? top : null;
}

function render({ model, el: host }) {
  const curves = {
    loss: new Series(),
    smooth: new Series('last'),
    grad_norm: new Series(),
    lr: new Series('last'),
    eval_loss: new Series(),
    bits_per_byte: new Series(),
  };
  let head = {};
  let sequence = -1;
  let pending = null;

  // header
  const name = el('strong');
  const chip = el('span', { class: 'nbllm-chip', role: 'status' });
  const progress = el('span');
  const facts = el('span', { class: 'nbllm-dim' });
  const buttons = {};
  const actions = el('span', { class: 'nbllm-actions' });
  for (const [command, label, busy, kind] of BUTTONS) {
    const button = el('button', { type: 'button', class: kind, 'aria-label': `${label} this run` }, label);
    button.addEventListener('click', () => {
      pending = { command, status: head.status, checkpoints: head.checkpoints?.length, until: Date.now() + 60000 };
      link.send({ do: command });
      show();
    });
    buttons[command] = { button, label, busy };
    actions.append(button);
  }
  const error = el('div', { class: 'nbllm-error', role: 'alert', hidden: true });
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });

  // picture
  const trainLegend = el('span', { class: 'nbllm-s1' });
  const heldOutLegend = el('span', { class: 'nbllm-s2' });
  const lastStep = () => rightEnd(curves.loss.lastStep, head.total);
  const chart = new LineChart(
    [
      { series: curves.loss, name: 'train', colour: '--nb-s1', width: 1, alpha: 0.35 },
      { series: curves.smooth, name: 'smoothed', colour: '--nb-s1' },
      { series: curves.eval_loss, name: 'held-out', colour: '--nb-s2', dots: true },
    ],
    {
      label: 'Loss in nats a token by step; arrow keys read the values',
      lastStep,
      marks: () => [...(head.checkpoints || []).map((step) => [step, 'checkpoint']), ...(head.happened || [])],
      zoomed: (range) => follow(range),
      note: ({ ink, x, y, top, width, colour }) => {
        if (!isNumber(head.first_bad_step)) return;
        const text = `⚠ loss not finite at step ${count(head.first_bad_step)}`;
        ink.fillStyle = colour('--nb-warn');
        ink.textAlign = 'left';
        ink.fillText(text, Math.min(x(head.first_bad_step) + 4, width - ink.measureText(text).width - 4), top + 12);
      },
    }
  );
  const table = tableBehind('values as a table', ['step', 'train', 'held-out', 'bits a byte'], () => {
    const rows = [];
    if (curves.eval_loss.length) {
      const evaluations = [];
      curves.eval_loss.each((step, value) => evaluations.push([step, value]));
      for (const [step, value] of evaluations.slice(-100)) {
        const [train, bits] = [curves.smooth.near(step), curves.bits_per_byte.near(step)];
        rows.push([count(step), loss(train?.[1]), loss(value), loss(bits?.[1])]);
      }
    } else {
      const every = Math.max(1, Math.ceil(curves.smooth.length / 30));
      let i = 0;
      curves.smooth.each((step, value) => i++ % every === 0 && rows.push([count(step), loss(value), '–', '–']));
    }
    return rows;
  });

  // details
  const gradLabel = el('div', { class: 'nbllm-label' });
  const grad = new LineChart(
    [{ series: curves.grad_norm, name: 'gradient norm', colour: '--nb-s3', width: 1.2 }],
    {
      label: 'Gradient norm by step; arrow keys read the values',
      height: 52,
      axes: false,
      low: 0,
      lastStep,
      zoomed: (range) => follow(range),
      note: ({ ink, x, width, colour }) => {
        const top = spike(curves.grad_norm);
        if (!top) return;
        const text = `⚠ spike at ${count(top[0])}`;
        ink.fillStyle = colour('--nb-warn');
        ink.textAlign = 'left';
        ink.fillText(text, Math.min(x(top[0]) + 6, width - ink.measureText(text).width - 2), 11);
      },
    }
  );
  const rateLabel = el('div', { class: 'nbllm-label nbllm-gap' });
  const rates = new LineChart([{ series: curves.lr, name: 'learning rate', colour: '--nb-s4', width: 1.5, format: rate }], {
    label: 'Learning rate by step; arrow keys read the values',
    height: 40,
    axes: false,
    low: 0,
    lastStep,
    zoomed: (range) => follow(range),
  });
  const logarithmic = el('button', { type: 'button', class: 'nbllm-small', 'aria-pressed': 'false' }, 'log');
  logarithmic.title = 'Logarithmic scale of the loss';
  logarithmic.addEventListener('click', () => {
    chart.log = !chart.log;
    logarithmic.setAttribute('aria-pressed', String(chart.log));
    chart.draw();
  });
  const all = el('button', { type: 'button', class: 'nbllm-small', hidden: true }, 'whole run');
  all.addEventListener('click', () => chart.zoom(null));
  // what is zoomed in one chart is zoomed in all
  function follow(range) {
    all.hidden = range === null;
    for (const each of [chart, grad, rates]) each.zoom(range, false);
  }
  const factor = slider({
    label: 'learning-rate factor',
    bare: true,
    low: 0,
    high: 2,
    step: 0.05,
    format: (value) => `× ${value.toFixed(2)}`,
    read: (text) => Math.min(2, Math.max(0, Number(text.replace(',', '.').replace('×', '')))),
    change: debounce(250, (value) => link.send({ do: 'lr_factor', value })),
  });
  const sampleLabel = el('div', { class: 'nbllm-label nbllm-gap' });
  const sample = el('div', { class: 'nbllm-mono nbllm-sample', tabindex: '0', role: 'region', 'aria-label': 'sample text' });

  const legend = el('div', { class: 'nbllm-label' }, 'loss, nats a token ', trainLegend, ' ', heldOutLegend, ' ', logarithmic, ' ', all);
  const ranksLabel = el('div', { class: 'nbllm-label nbllm-gap' }, 'memory and use by rank');
  const ranks = el('table', { class: 'nbllm-ranks', 'aria-label': 'memory and use by rank' });
  const root = el('div', { class: 'nbllm', role: 'group', hidden: true });
  root.append(
    el('div', { class: 'nbllm-head' }, name, chip, progress, el('div', { class: 'nbllm-tail' }, facts, actions)),
    error,
    note,
    el(
      'div',
      { class: 'nbllm-body nbllm-columns nbllm-train' },
      el('div', {}, legend, chart.root, table.root),
      el('div', {}, gradLabel, grad.root, rateLabel, rates.root, factor.root, ranksLabel, ranks, sampleLabel, sample)
    )
  );
  host.append(root);

  function settled() {
    if (!pending) return true;
    if (pending.command === 'checkpoint') return head.checkpoints?.length !== pending.checkpoints || head.over;
    return head.status !== pending.status;
  }

  function show() {
    if (pending && (settled() || head.trouble || Date.now() > pending.until)) pending = null;
    root.setAttribute('aria-label', `Training run ${head.name}`);
    say(name, head.name ?? '');
    say(chip, `${head.icon} ${head.status}`);
    chip.className = `nbllm-chip ${head.colour}`;
    say(progress, `step ${count(head.step || 0)}${head.total ? ` / ${count(head.total)}` : ''}`);
    sayFacts(facts, runFacts(head));
    say(trainLegend, `━ train ${loss(head.loss)}`);
    say(heldOutLegend, `● ${legendText(head)}`);
    say(gradLabel, `gradient norm ${loss(head.grad_norm)}`);
    say(rateLabel, `learning rate ${rate(head.lr)}`);
    factor.set(head.factor);
    factor.enable(!head.over);
    sampleLabel.hidden = sample.hidden = !head.sample;
    if (head.sample) {
      say(sampleLabel, `says, at step ${count(head.sample[0])}`);
      say(sample, head.sample[1]);
    }
    const uses = head.ranks || [];
    ranksLabel.hidden = ranks.hidden = !uses.length;
    const seen = JSON.stringify(uses);
    if (ranks.dataset.seen !== seen) {
      ranks.dataset.seen = seen;
      ranks.replaceChildren(
        ...uses.map((use) => el('tr', {}, ...[`rank ${use.rank}`, use.memory, use.busy].map((cell) => el('td', {}, cell))))
      );
    }
    const trouble = [head.error, head.trouble].filter(Boolean).join('\n');
    error.hidden = !trouble;
    say(error, trouble);
    const allowed = ALLOWED[head.status] || [];
    for (const [command, { button, label, busy }] of Object.entries(buttons)) {
      const unused = command === 'resume' || head.over || (command === 'pause' && head.status === 'paused');
      button.hidden = unused && !allowed.includes(command);
      button.disabled = !allowed.includes(command) || pending !== null;
      say(button, pending?.command === command ? busy : label);
      if (pending?.command === command) button.setAttribute('aria-busy', 'true');
      else button.removeAttribute('aria-busy');
    }
    for (const each of [chart, grad, rates]) each.draw();
    table.fill();
    link.keep(!head.over);
  }

  function receive(content, buffers) {
    if (content.kind === 'snapshot') {
      sequence = content.sequence;
      head = content.head;
      content.curves.forEach((key, i) => curves[key].load(...points(buffers[i]), content.strides[key]));
      root.hidden = false;
      hideFace(root, content.face);
      show();
    } else if (content.kind === 'delta' && sequence >= 0 && content.sequence > sequence) {
      if (content.sequence > sequence + 1) {
        sequence = -1; // one was missed
        link.ask();
        return;
      }
      sequence = content.sequence;
      Object.assign(head, content.head);
      content.curves.forEach((key, i) => {
        const [steps, values] = points(buffers[i]);
        steps.forEach((step, j) => curves[key].append(step, values[j]));
      });
      show();
    }
  }

  function silence(gone) {
    const text =
      gone && !head.over
        ? `No word from the kernel: was it restarted? The run itself goes on: %llm_train --attach ${head.name} shows it again.`
        : '';
    note.hidden = !text;
    say(note, text);
  }

  const link = connect(model, { receive, silence });
  return () => {
    link.end();
    for (const each of [chart, grad, rates]) each.destroy();
  };
}

export default { render };
