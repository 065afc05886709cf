/* Numbers on their way from the server: half floats in base64, and the rollout of layers. */

export function halves(base64) {
  const raw = atob(base64);
  const out = new Float32Array(raw.length / 2);
  for (let i = 0; i < out.length; i++) {
    const h = raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8);
    const e = (h >> 10) & 31;
    const m = h & 1023;
    let v = (1 + m / 1024) * 2 ** (e - 15);
    if (e === 0) v = m * 2 ** -24;
    if (e === 31) v = m ? NaN : Infinity;
    out[i] = h & 0x8000 ? -v : v;
  }
  return out;
}

/** `count` matrices of size * size, each times its own scale. */
export function decode(block, count, size) {
  const flat = halves(block.data);
  const step = size * size;
  return Array.from({ length: count }, (_, l) =>
    flat.subarray(l * step, (l + 1) * step).map((v) => v * block.scale[l]),
  );
}

/** Rows divided by their sums. */
export function shares(matrix, n) {
  const out = new Float32Array(matrix);
  for (let i = 0; i < n; i++) {
    let sum = 0;
    for (let j = 0; j < n; j++) sum += out[i * n + j];
    if (sum) for (let j = 0; j < n; j++) out[i * n + j] /= sum;
  }
  return out;
}

export function product(a, b, n) {
  const out = new Float32Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < n; k++) {
      const f = a[i * n + k];
      if (f) for (let j = 0; j < n; j++) out[i * n + j] += f * b[k * n + j];
    }
  }
  return out;
}

/** A value as people read it. */
export function number(v) {
  if (!isFinite(v)) return String(v);
  const size = Math.abs(v);
  if (size !== 0 && (size >= 1e5 || size < 1e-4)) return v.toExponential(2);
  return v.toFixed(size >= 100 ? 1 : 4);
}

/** The largest finite magnitude. */
export function extreme(values) {
  let top = 0;
  for (const v of values) {
    const a = Math.abs(v);
    if (a > top && isFinite(a)) top = a;
  }
  return top;
}
