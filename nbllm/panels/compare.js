// Runs over one another. Its half in the kernel is compare.py, which names the messages.

const COLOURS = ['--nb-s1', '--nb-s2', '--nb-s3', '--nb-s4'];

function render({ model, el: host }) {
  let known = '';
  let live = false;
  let content = null;
  let series = [];
  let chart = null;

  const legend = el('div', { class: 'nbllm-label' });
  const place = el('div');
  const logarithmic = el('button', { type: 'button', class: 'nbllm-small', 'aria-pressed': 'false' }, 'log');
  logarithmic.title = 'Logarithmic scale of the loss';
  const all = el('button', { type: 'button', class: 'nbllm-small', hidden: true }, 'whole runs');
  logarithmic.addEventListener('click', () => {
    if (!chart) return;
    chart.log = !chart.log;
    logarithmic.setAttribute('aria-pressed', String(chart.log));
    chart.draw();
  });
  all.addEventListener('click', () => chart?.zoom(null));
  const tables = el('div');
  const note = el('div', { class: 'nbllm-note', role: 'status', hidden: true });
  const root = el('div', { class: 'nbllm', role: 'group', 'aria-label': 'Runs compared', hidden: true });
  root.append(
    el('div', { class: 'nbllm-head' }, el('strong', {}, 'Runs compared'), el('div', { class: 'nbllm-tail' }, all, ' ', logarithmic)),
    note,
    el('div', { class: 'nbllm-body' }, legend, place, tables)
  );
  host.append(root);

  function build() {
    series = content.runs.map(() => [new Series('last'), new Series()]);
    const layers = content.runs.flatMap((run, i) => {
      const look = { colour: COLOURS[i % COLOURS.length], dash: i < COLOURS.length ? [] : [6, 4] };
      return [
        { series: series[i][0], name: run.name, ...look },
        { series: series[i][1], name: `${run.name} held-out`, dots: true, ...look },
      ];
    });
    chart?.destroy();
    chart = new LineChart(layers, {
      label: 'Losses in nats a token by step; arrow keys read the values, plus and minus zoom',
      lastStep: () => Math.max(...series.map((pair) => pair[0].lastStep), 1),
      zoomed: (range) => (all.hidden = range === null),
    });
    place.replaceChildren(chart.root);
    const runs = tableBehind('runs as a table', content.head, () => content.rows);
    tables.replaceChildren(runs.root);
    if (content.differences.length) {
      const names = ['option', ...content.runs.map((run) => run.name)];
      tables.append(tableBehind('what was asked differently', names, () => content.differences).root);
    }
  }

  function receive(found, buffers) {
    if (found.kind !== 'snapshot') return;
    content = found;
    live = found.live;
    const names = JSON.stringify(found.runs.map((run) => run.name));
    if (names !== known) {
      known = names;
      build();
    }
    series.forEach((pair, i) => pair.forEach((one, j) => one.load(...points(buffers[2 * i + j]), 1)));
    legend.replaceChildren('loss, nats a token (● held-out) ');
    found.runs.forEach((run, i) => {
      const mark = el('i', { class: 'nbllm-swatch', style: `border-top: 3px ${i < COLOURS.length ? 'solid' : 'dashed'} var(${COLOURS[i % COLOURS.length]})` });
      legend.append(mark, `${run.name} ${run.icon}  `);
    });
    root.hidden = false;
    hideFace(root, found.face);
    chart.draw();
    link.keep(live);
  }

  const silence = (gone) => {
    note.hidden = !(gone && live);
    say(note, 'No word from the kernel: was it restarted? Run this cell again.');
  };
  const link = connect(model, { receive, silence });
  const timer = setInterval(() => live && link.ask(), 2500);
  return () => {
    clearInterval(timer);
    link.end();
    chart?.destroy();
  };
}

export default { render };
