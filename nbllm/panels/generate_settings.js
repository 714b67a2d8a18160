// The settings' sliders, and the model's checkpoint and adapter.

const fixed = (digits) => (value) => value.toFixed(digits);
// A number that reads `off` at the value that does nothing.
const orOff = (off, format) => ({
  format: (value) => (value === off ? 'off' : format(value)),
  read: (text) => (text === 'off' ? off : Number(text)),
});
const SLIDERS = [
  { key: 'temperature', label: 'temperature', low: 0, high: 2, step: 0.05, format: fixed(2) },
  { key: 'top_p', label: 'top-p', low: 0, high: 1, step: 0.01, ...orOff(1, fixed(2)) },
  { key: 'top_k', label: 'top-k', low: 0, high: 200, step: 1, ...orOff(0, String) },
  { key: 'min_p', label: 'min-p', low: 0, high: 0.5, step: 0.01, ...orOff(0, fixed(2)) },
  { key: 'typical_p', label: 'typical-p', low: 0, high: 1, step: 0.01, ...orOff(1, fixed(2)) },
  { key: 'repetition_penalty', label: 'repetition', low: 1, high: 2, step: 0.01, ...orOff(1, fixed(2)) },
  { key: 'presence_penalty', label: 'presence', low: 0, high: 2, step: 0.05, ...orOff(0, fixed(2)) },
  { key: 'frequency_penalty', label: 'frequency', low: 0, high: 2, step: 0.05, ...orOff(0, fixed(2)) },
  { key: 'max_new_tokens', label: 'new tokens', low: 1, high: 400, step: 1, format: String },
  { key: 'seed', label: 'seed', low: 0, high: 100, step: 1, format: String },
];

// Which settings differ, with the values of the first: 'temperature 0.50'.
function differences(settings, others) {
  return SLIDERS.filter(({ key }) => key in settings && settings[key] !== others[key]).map(
    ({ key, label, format }) => `${label} ${format(settings[key])}`
  );
}

// Calls at once, then at most every so many milliseconds, the last call always.
function throttle(every, call) {
  let timer = 0;
  let last = -Infinity;
  return () => {
    clearTimeout(timer);
    const run = () => {
      last = performance.now();
      call();
    };
    const wait = last + every - performance.now();
    if (wait <= 0) run();
    else timer = setTimeout(run, wait);
  };
}

// give(changed): the settings that were moved.
function settingSliders(give) {
  let changed = {};
  const soon = throttle(60, () => {
    const moved = changed;
    changed = {};
    give(moved);
  });
  const change = (key) => (value) => {
    changed[key] = value;
    soon();
  };
  const all = Object.fromEntries(SLIDERS.map(({ key, ...options }) => [key, slider({ ...options, change: change(key) })]));
  const root = el('div', {}, ...SLIDERS.map(({ key }) => all[key].root));
  const set = (settings, force) => {
    for (const { key } of SLIDERS) {
      all[key].root.hidden = !(key in settings);
      if (key in settings && !(key in changed)) all[key].set(settings[key], force);
    }
  };
  return { root, set };
}

// choose({checkpoint} or {adapter}); look(): asks which there are now.
function modelPickers({ choose, look }) {
  const picker = (label, name, read) => {
    const select = el('select', { 'aria-label': label, onchange: () => choose({ [name]: read(select.value) }) });
    for (const event of ['pointerdown', 'focus']) select.addEventListener(event, look);
    select.addEventListener('keydown', (event) => event.stopPropagation());
    return { select, row: el('div', { class: 'nbllm-pick' }, el('span', {}, label), select), options: '' };
  };
  const checkpoint = picker('checkpoint', 'checkpoint', (value) => (value ? Number(value) : null));
  const adapter = picker('adapter', 'adapter', (value) => value || null);
  const fill = (one, options, value) => {
    const key = JSON.stringify(options);
    if (one.options !== key) {
      one.options = key;
      one.select.replaceChildren(...options.map(([id, label]) => el('option', { value: id }, label)));
    }
    one.select.value = value ?? '';
    one.row.hidden = options.length < 2;
  };
  const set = ({ checkpoints, checkpoint: chosen, adapters, adapter: on }) => {
    const newest = checkpoints[checkpoints.length - 1];
    const steps = checkpoints.slice().reverse().map((step) => [String(step), `step ${count(step)}`]);
    fill(checkpoint, checkpoints.length ? [['', `newest (step ${count(newest)})`], ...steps] : [], chosen === null ? '' : String(chosen));
    fill(adapter, [['', 'off'], ...adapters.map((name) => [name, name])], on);
  };
  return { root: el('div', { class: 'nbllm-gap' }, checkpoint.row, adapter.row), set };
}
