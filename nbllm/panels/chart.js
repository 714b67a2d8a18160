// A line chart on a canvas. Stands behind kit.js and series.js and in front of a panel's module.

function ticks(low, high, most) {
  if (!(high > low)) return [];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= high / step + 1e-9; i++) found.push(i * step || 0); // no -0
  return found;
}

// Round values on a logarithmic axis: 1, 2 and 5 times powers of ten, fewer where they are many.
function logTicks(low, high) {
  for (const factors of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power++)
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= low && value <= high) found.push(value);
      }
    if (found.length <= 9) return found.length > 1 ? found : ticks(low, high, 5);
  }
  return [];
}

// Calls back when the theme or the pixel ratio changes; returns what ends it.
function watchLook(callback) {
  let query = null;
  let timers = [];
  const soon = () => {
    callback();
    timers.forEach(clearTimeout);
    timers = [100, 500, 1500].map((delay) => setTimeout(callback, delay)); // a theme's style sheet arrives later
  };
  const observer = new MutationObserver(soon);
  const filter = { attributes: true, attributeFilter: ['class', 'style', 'data-jp-theme-name', 'data-jp-theme-light'] };
  observer.observe(document.body, filter);
  observer.observe(document.documentElement, filter);
  const ratio = () => {
    query?.removeEventListener('change', ratio);
    query = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    query.addEventListener('change', ratio);
    callback();
  };
  ratio();
  return () => {
    observer.disconnect();
    query.removeEventListener('change', ratio);
    timers.forEach(clearTimeout);
  };
}

// Where the axis ends: the run's end, halved until the curve fills at least a fifth or so of the width.
function rightEnd(step, total) {
  let end = total || step;
  while (end / 2 > Math.max(step * 1.1, 20)) end /= 2;
  return Math.max(end, step);
}

// A line chart on a canvas. Layers, drawn in order: {series, name, colour (a variable), width, alpha, dots, format, dash}.
// Options: height, label (for screen readers), axes, lastStep() (right end), marks() (lists of step and words),
// note(plot), zoomed(range). Drag over a range of steps, or + and -, to zoom; a double click, or 0, shows all again.
class LineChart {
  constructor(layers, options) {
    this.layers = layers;
    this.options = { height: 230, axes: true, marks: () => [], ...options };
    this.canvas = el('canvas', { tabindex: '0', role: 'img', 'aria-label': this.options.label });
    this.canvas.style.height = `${this.options.height}px`;
    this.tip = el('div', { class: 'nbllm-tip', hidden: true });
    this.voice = el('div', { class: 'nbllm-voice', 'aria-live': 'polite', hidden: true });
    this.root = el('div', { class: 'nbllm-chart' }, this.canvas, this.tip);
    this.at = null;
    this.asked = 0;
    this.range = null; // the steps shown, [first, last]; null: all
    this.log = false; // values on a logarithmic scale
    this.dragged = null; // where a drag began, in steps
    const move = (event) => this.point(this.stepAt(event.offsetX));
    this.canvas.addEventListener('pointermove', move);
    this.canvas.addEventListener('pointerleave', () => this.point(null));
    this.canvas.addEventListener('pointerdown', (event) => {
      this.dragged = this.stepAt(event.offsetX);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointerup', (event) => {
      const [from, to] = [this.dragged, this.stepAt(event.offsetX)];
      this.dragged = null;
      if (from === null || to === null || !this.plot) return;
      if (Math.abs(this.plot.x(from) - this.plot.x(to)) > 6) this.zoom([Math.min(from, to), Math.max(from, to)]);
    });
    this.canvas.addEventListener('pointercancel', () => (this.dragged = null));
    this.canvas.addEventListener('dblclick', () => this.zoom(null));
    this.canvas.addEventListener('blur', () => this.point(null));
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.canvas);
    this.stopLook = watchLook(() => this.draw());
  }

  destroy() {
    this.sizes.disconnect();
    this.stopLook();
    cancelAnimationFrame(this.asked);
  }

  // Draws before the next frame, once however often it is asked.
  draw() {
    if (!this.asked) this.asked = requestAnimationFrame(() => this.paint());
  }

  // Shows some steps, or all of them (null), and says so to whoever wants to follow.
  zoom(range, tell = true) {
    const whole = Math.max(1, this.options.lastStep());
    if (range) {
      const width = Math.max(2, Math.min(whole, range[1] - range[0]));
      const first = Math.max(0, Math.min(whole - width, range[0]));
      range = width >= whole ? null : [first, first + width];
    }
    this.range = range;
    this.draw();
    if (tell) this.options.zoomed?.(range);
  }

  key(event) {
    if (['+', '=', '-', '0'].includes(event.key)) {
      event.preventDefault();
      event.stopPropagation();
      const [first, last] = this.range ?? [0, Math.max(1, this.options.lastStep())];
      const centre = this.at ?? (first + last) / 2;
      const half = ((last - first) / 2) * (event.key === '-' ? 2 : 0.5);
      return this.zoom(event.key === '0' ? null : [centre - half, centre + half]);
    }
    const all = [];
    this.layers[0].series.each((step) => all.push(step));
    if (!all.length) return;
    let i = this.at === null ? all.length - 1 : all.findIndex((step) => step >= this.at);
    if (i < 0) i = all.length - 1;
    const jump = event.shiftKey ? Math.max(1, Math.round(all.length / 20)) : 1;
    if (event.key === 'ArrowLeft') i -= jump;
    else if (event.key === 'ArrowRight') i += jump;
    else if (event.key === 'Home') i = 0;
    else if (event.key === 'End') i = all.length - 1;
    else if (event.key === 'Escape') return this.point(null);
    else return;
    event.preventDefault();
    event.stopPropagation(); // else the notebook takes the arrow keys
    this.point(all[Math.min(all.length - 1, Math.max(0, i))]);
    this.canvas.setAttribute('aria-label', `${this.options.label}. ${this.tip.textContent}`);
  }

  point(step) {
    this.at = step;
    this.draw();
    if (step === null) {
      this.tip.hidden = true;
      return;
    }
    const first = this.layers[0].series.near(step);
    if (!first) return;
    const parts = [`step ${count(first[0])}`];
    for (const { series, name, format = loss, dots } of this.layers) {
      const near = name && series.near(first[0]);
      if (near) parts.push(`${name} ${format(near[1])}${dots && near[0] !== first[0] ? ` (at ${count(near[0])})` : ''}`);
    }
    this.at = first[0];
    say(this.tip, parts.join(' · '));
    this.tip.hidden = false;
    const width = this.canvas.clientWidth;
    const x = this.plot ? this.plot.x(first[0]) : 0;
    const room = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(width - room, x < width / 2 ? x + 8 : x - room - 8))}px`;
  }

  stepAt(x) {
    if (!this.plot) return null;
    const { left, right, first, last } = this.plot;
    return first + ((Math.min(right, Math.max(left, x)) - left) / (right - left)) * (last - first);
  }

  limits() {
    const { low, high } = this.options;
    const values = [];
    const [first, last] = this.range ?? [-Infinity, Infinity];
    const add = (step, value) => {
      if (step >= first && step <= last && Number.isFinite(value) && (!this.log || value > 0)) values.push(this.scale(value));
    };
    for (const { series } of this.layers) series.each(add);
    if (!values.length) return null;
    values.sort((a, b) => a - b);
    const bottom = low != null && !this.log ? low : values[0];
    const top = high ?? values[Math.min(values.length - 1, Math.ceil(values.length * (this.options.axes ? 0.995 : 1)) - 1)];
    const room = (top - bottom) * 0.06 || Math.max(Math.abs(bottom) * 0.05, 1e-12);
    return [bottom - room, top + room];
  }

  // A value as it is drawn: itself, or its logarithm.
  scale(value) {
    return this.log ? Math.log10(value) : value;
  }

  paint() {
    this.asked = 0;
    const { canvas, options } = this;
    const width = canvas.clientWidth;
    const height = options.height;
    if (!width) return;
    const dpr = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * dpr) || canvas.height !== Math.round(height * dpr)) {
      canvas.width = Math.round(width * dpr);
      canvas.height = Math.round(height * dpr);
    }
    const style = getComputedStyle(canvas);
    const colour = (variable) => style.getPropertyValue(variable).trim() || 'gray';
    const ink = canvas.getContext('2d');
    ink.setTransform(dpr, 0, 0, dpr, 0, 0);
    ink.clearRect(0, 0, width, height);
    ink.font = `11px ${style.fontFamily}`;
    const limits = this.limits();
    const [low, high] = limits ?? [0, 1];
    const [first, last] = this.range ?? [0, Math.max(1, options.lastStep())];
    const yTicks = !options.axes || !limits ? [] : this.log ? logTicks(10 ** low, 10 ** high) : ticks(low, high, 8);
    const apart = yTicks.length > 1 ? yTicks[1] - yTicks[0] : 0.1;
    const digits = Math.max(0, -Math.floor(Math.log10(apart) + 1e-9));
    const names = yTicks.map((value) => (this.log ? String(Number(value.toPrecision(3))) : value.toFixed(digits)));
    const left = options.axes ? Math.max(24, ...names.map((name) => ink.measureText(name).width)) + 10 : 1;
    const right = width - (options.axes ? 6 : 2);
    const top = options.axes ? 14 : 3;
    const bottom = height - (options.axes ? 20 : 3);
    const x = (step) => left + ((step - first) / (last - first)) * (right - left);
    const within = (value) => Math.min(high, Math.max(low, this.scale(value)));
    const y = (value) => bottom - ((within(value) - low) / (high - low)) * (bottom - top);
    this.plot = { left, right, top, bottom, first, last, x, y, ink, width, colour };

    ink.lineWidth = 1;
    ink.strokeStyle = colour('--nb-line');
    ink.fillStyle = colour('--nb-fg2');
    yTicks.forEach((value, i) => {
      const line = Math.round(y(value)) + 0.5;
      ink.beginPath();
      ink.moveTo(left, line);
      ink.lineTo(right, line);
      ink.stroke();
      ink.textAlign = 'right';
      ink.fillText(names[i], left - 8, line + 4);
    });
    if (options.axes) {
      for (const step of ticks(first, last, Math.max(2, Math.min(7, width / 90)))) {
        if (step !== Math.round(step)) continue;
        const name = count(step);
        const half = ink.measureText(name).width / 2;
        ink.textAlign = 'center';
        ink.fillText(name, Math.min(right - half, Math.max(left + half, x(step))), height - 5);
      }
    }
    if (options.axes && !limits) {
      ink.textAlign = 'center';
      ink.fillText('waiting for the first step', (left + right) / 2, (top + bottom) / 2);
    }
    ink.save();
    ink.beginPath();
    ink.rect(left - 4, 0, right - left + 8, height);
    ink.clip(); // what lies outside a zoomed range
    this.paintMarks();
    for (const layer of this.layers) this.paintLayer(layer);
    options.note?.(this.plot);
    if (this.dragged !== null && this.at !== null) {
      ink.globalAlpha = 0.15;
      ink.fillStyle = colour('--nb-s1');
      ink.fillRect(x(this.dragged), top, x(this.at) - x(this.dragged), bottom - top);
      ink.globalAlpha = 1;
    }
    ink.restore();
    if (this.at !== null) {
      ink.fillStyle = colour('--nb-fg2');
      ink.fillRect(Math.round(x(this.at)), top - 6, 1, bottom - top + 6);
    }
  }

  paintMarks() {
    const { ink, x, top, bottom, right, colour } = this.plot;
    let free = -Infinity;
    ink.textAlign = 'left';
    ink.fillStyle = colour('--nb-fg2');
    const marks = this.options.marks().sort((one, other) => one[0] - other[0]);
    const foot = marks.length <= 8 ? bottom : top; // many marks are short, so that they don't fence the curve in
    for (const [step, words] of marks) {
      const at = Math.round(x(step));
      ink.globalAlpha = 0.5;
      ink.fillRect(at, top - 10, 1, foot - top + 10);
      ink.globalAlpha = 1;
      const name = `▾ ${words}`;
      const room = ink.measureText(name).width + 8;
      if (at > free && at + room < right) {
        ink.fillText(name, at + 4, top - 3);
        free = at + room;
      }
    }
  }

  paintLayer({ series, colour, width = 2, alpha = 1, dots = false, dash = [] }) {
    const { ink, x, y, left, right } = this.plot;
    ink.globalAlpha = alpha;
    ink.strokeStyle = ink.fillStyle = this.plot.colour(colour);
    ink.lineWidth = width;
    ink.lineJoin = 'round';
    ink.setLineDash(dash);
    if (dots) {
      series.each((step, value) => {
        if (!Number.isFinite(value) || (this.log && value <= 0)) return;
        ink.beginPath();
        ink.arc(x(step), y(value), 3.5, 0, 7);
        ink.fill();
      });
    } else {
      // lowest and highest of each pixel column: as many lines as pixels, however many points
      ink.beginPath();
      let pen = false;
      let column = null;
      const flush = () => {
        if (!column) return;
        const order = column.low[0] < column.high[0] ? [column.low, column.high] : [column.high, column.low];
        for (const [step, value] of order) {
          if (pen) ink.lineTo(x(step), y(value));
          else ink.moveTo(x(step), y(value));
          pen = true;
        }
        column = null;
      };
      const dense = series.length > 2 * (right - left);
      series.each((step, value) => {
        if (!Number.isFinite(value) || (this.log && value <= 0)) {
          flush();
          pen = false;
          return;
        }
        const pixel = dense ? Math.round(x(step)) : step;
        if (column && column.pixel === pixel) {
          if (value < column.low[1]) column.low = [step, value];
          if (value > column.high[1]) column.high = [step, value];
        } else {
          flush();
          column = { pixel, low: [step, value], high: [step, value] };
        }
      });
      flush();
      ink.stroke();
    }
    ink.setLineDash([]);
    ink.globalAlpha = 1;
  }
}
