// What the panels share in the browser: elements, numbers, a slider, a table behind a chart, the line to the kernel.
// Put in front of a panel's own module, so it exports nothing. Text from data only ever becomes a text node.

// Control characters and those that turn the direction of writing, written out as in plain.py.
const STEERING = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
const writtenOut = (text) =>
  text.replace(STEERING, (one) => `<U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}>`);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'class') node.className = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.map((child) => (typeof child === 'string' ? writtenOut(child) : child)));
  return node;
}

const say = (node, text) => {
  const shown = writtenOut(String(text));
  if (node.textContent !== shown) node.textContent = shown;
};

// Facts side by side, each of which stays on one line.
function sayFacts(node, facts) {
  if (node.textContent === facts.join(' · ')) return;
  const spans = facts.map((fact) => el('span', { class: 'nbllm-fact' }, fact));
  node.replaceChildren(...spans.flatMap((span, i) => (i ? [' · ', span] : [span])));
}

// Numbers, written as in text.py.
const count = (value) => Math.round(value).toLocaleString('en-US');
const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const loss = (value) => (isNumber(value) ? value.toFixed(2) : '–');
const rate = (value) => (!isNumber(value) ? '–' : value === 0 ? '0' : value.toExponential(1).replace('e+', 'e'));
function duration(seconds) {
  if (!isNumber(seconds)) return '–';
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// A table behind a chart, filled when it is opened: rows() gives lists of strings.
function tableBehind(summary, head, rows) {
  const body = el('tbody');
  const fill = () => {
    if (root.open) body.replaceChildren(...rows().map((row) => el('tr', {}, ...row.map((cell) => el('td', {}, cell)))));
  };
  const top = el('thead', {}, el('tr', {}, ...head.map((cell) => el('th', { scope: 'col' }, cell))));
  const root = el('details', { class: 'nbllm-table', ontoggle: fill }, el('summary', {}, summary));
  root.append(el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': summary }, el('table', {}, top, body)));
  return { root, fill };
}

// A slider with a typed field beside it. Options: label, bare (no visible label), low, high, step, format, read (text to
// number or NaN), change(value). `set` moves it from outside, unless the user is at it just then.
function slider({ label, bare = false, low, high, step, format = String, read = Number, change }) {
  const range = el('input', { type: 'range', min: low, max: high, step, 'aria-label': label });
  const field = el('input', { type: 'text', 'aria-label': `${label}, typed`, inputmode: 'decimal' });
  let touched = 0;
  let typing = false;
  let value = low;
  const show = () => {
    range.value = value;
    range.style.setProperty('--fill', `${((Math.min(high, Math.max(low, value)) - low) / (high - low)) * 100}%`);
    range.setAttribute('aria-valuetext', format(value));
    if (!typing) field.value = format(value);
  };
  const give = (next) => {
    value = next;
    touched = Date.now();
    show();
    change(value);
  };
  range.addEventListener('input', () => give(Number(range.value)));
  field.addEventListener('input', () => (typing = true));
  field.addEventListener('change', () => {
    typing = false;
    const next = field.value.trim() ? read(field.value.trim()) : NaN;
    if (Number.isFinite(next)) give(next);
    else show();
  });
  for (const input of [range, field]) input.addEventListener('keydown', (event) => event.stopPropagation());
  const root = el('div', { class: bare ? 'nbllm-slider bare' : 'nbllm-slider' });
  if (!bare) root.append(el('span', {}, label));
  root.append(range, field);
  const set = (next, force = false) => {
    if (isNumber(next) && (force || Date.now() - touched > 1000)) {
      value = next;
      show();
    }
  };
  const enable = (on) => (range.disabled = field.disabled = !on);
  show();
  return { root, set, enable };
}

// Waits until calls stop coming for so many milliseconds.
function debounce(delay, call) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), delay);
  };
}

// Hides the static face of this panel for as long as the panel is on the page.
function hideFace(root, id) {
  if (!/^[\w-]+$/.test(id) || root.querySelector('style')) return;
  const hide = el('style');
  hide.textContent = `.nbllm-face-${id}, .jp-OutputArea-child:has(.nbllm-face-${id}) { display: none !important; }`;
  root.append(hide);
}

// The line between a view and the kernel: asks for a snapshot, says now and then that it is there, notices silence.
function connect(model, { receive, silence }) {
  const view = Math.random().toString(36).slice(2);
  let answered = Date.now();
  let lively = true;
  let waiting = true; // for a snapshot
  const send = (content) => {
    try {
      model.send(content);
    } catch (error) {
      silence(true); // the kernel is gone: a saved page, or a restart
    }
  };
  const listen = (content, buffers) => {
    answered = Date.now();
    silence(false);
    if (content.kind === 'snapshot' && content.view !== null && content.view !== view) return;
    if (content.kind === 'snapshot') waiting = false;
    receive(content, buffers);
  };
  model.on('msg:custom', listen);
  const ask = () => {
    waiting = true;
    send({ ask: 'snapshot', view });
  };
  let asked = Date.now();
  const timer = setInterval(() => {
    if (waiting) ask(); // a page that is being loaded may lose what it sends before the kernel answers
    if (!lively) return;
    if (Date.now() - answered > 12000) silence(true);
    if (Date.now() - asked < 15000) return;
    asked = Date.now();
    send({ ask: 'alive' });
  }, 3000);
  ask();
  return {
    send,
    ask,
    keep: (on) => (lively = on),
    end: () => {
      clearInterval(timer);
      model.off('msg:custom', listen);
    },
  };
}
