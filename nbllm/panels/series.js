// Curves with bounded memory, as the kernel's history.py keeps them. Knows nothing of how they are drawn.

// One curve, as history.py's Series: at `capacity` points, each four neighbours become their lowest and highest.
class Series {
  constructor(keep = 'extremes', capacity = 4096) {
    this.keep = keep;
    this.capacity = capacity;
    this.clear();
  }

  clear(stride = 1) {
    this.stride = stride;
    this.length = 0;
    this.steps = new Float64Array(this.capacity + 8);
    this.values = new Float64Array(this.capacity + 8);
    this.bucket = [];
    this.newest = null;
  }

  load(steps, values, stride) {
    this.clear(stride);
    for (let i = 0; i < steps.length && i < this.capacity; i++) this.push(steps[i], values[i]);
    if (steps.length) this.newest = [steps[steps.length - 1], values[steps.length - 1]];
  }

  append(step, value) {
    this.newest = [step, value];
    if (this.stride === 1) this.push(step, value);
    else {
      this.bucket.push([step, value]);
      if (this.bucket.length === 2 * this.stride) {
        for (const point of this.thin(this.bucket)) this.push(...point);
        this.bucket = [];
      }
    }
    if (this.length >= this.capacity) this.halve();
  }

  push(step, value) {
    this.steps[this.length] = step;
    this.values[this.length++] = value;
  }

  halve() {
    const n = this.length;
    this.length = 0;
    for (let start = 0; start < n; start += 4) {
      const four = [];
      for (let i = start; i < Math.min(n, start + 4); i++) four.push([this.steps[i], this.values[i]]);
      for (const point of this.thin(four)) this.push(...point);
    }
    this.stride *= 2;
  }

  thin(bucket) {
    if (bucket.length <= 2) return bucket.slice();
    if (this.keep === 'last') return [bucket[(bucket.length >> 1) - 1], bucket[bucket.length - 1]];
    const finite = bucket.filter((point) => Number.isFinite(point[1]));
    const hole = bucket.find((point) => !Number.isFinite(point[1]));
    const chosen = hole ? [hole] : [];
    if (finite.length) {
      chosen.push(finite.reduce((best, point) => (point[1] > best[1] ? point : best)));
      if (!hole) chosen.push(finite.reduce((best, point) => (point[1] < best[1] ? point : best)));
    }
    return chosen.filter((point, i) => chosen.indexOf(point) === i).sort((a, b) => a[0] - b[0]);
  }

  // Calls visit(step, value) for every point, those of the bucket being filled and the newest included.
  each(visit) {
    for (let i = 0; i < this.length; i++) visit(this.steps[i], this.values[i]);
    for (const point of this.bucket) visit(point[0], point[1]);
    if (!this.bucket.length && this.length && this.newest?.[0] > this.steps[this.length - 1]) visit(...this.newest);
  }

  get lastStep() {
    return this.newest ? this.newest[0] : 0;
  }

  // The kept point nearest to a step, or null.
  near(step) {
    let best = null;
    this.each((s, v) => {
      if (best === null || Math.abs(s - step) <= Math.abs(best[0] - step)) best = [s, v];
    });
    return best;
  }
}

// A buffer of a message: n float64 steps, then n float64 values.
function points(view) {
  const n = view.byteLength / 16;
  const copy = new Float64Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  return [copy.subarray(0, n), copy.subarray(n)];
}
