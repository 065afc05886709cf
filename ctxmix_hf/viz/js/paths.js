/* The strongest whole paths from the input to the target, found exactly (best first, with the best rest as the bound). */
class Heap {
  // the largest `bound` first
  constructor() {
    this.items = [];
  }
  push(item) {
    const a = this.items;
    let i = a.push(item) - 1;
    while (i && a[(i - 1) >> 1].bound < a[i].bound) {
      const up = (i - 1) >> 1;
      [a[up], a[i]] = [a[i], a[up]];
      i = up;
    }
  }
  pop() {
    const a = this.items,
      top = a[0],
      last = a.pop();
    if (a.length) {
      a[0] = last;
      for (let i = 0; ;) {
        const l = 2 * i + 1,
          r = l + 1;
        let m = i;
        if (l < a.length && a[l].bound > a[m].bound) m = l;
        if (r < a.length && a[r].bound > a[m].bound) m = r;
        if (m === i) break;
        [a[m], a[i]] = [a[i], a[m]];
        i = m;
      }
    }
    return top;
  }
}

/**
 * layers: matrices of shares, lowest first, each n * n (target, source); starts: places of the target(s); k: how many paths.
 * Returns the edges of the k strongest paths (l, from 0; i above, j below; v: what the shown paths carry over it), and `share`,
 * how much of the whole (1) these paths are.
 */
export function strongest(layers, n, starts, k) {
  const depth = layers.length,
    rest = [new Float64Array(n).fill(1)]; // rest[l][j]: the best way from j above layer l down to the input
  for (let l = 0; l < depth; l++) {
    const best = new Float64Array(n);
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++) best[i] = Math.max(best[i], layers[l][i * n + j] * rest[l][j]);
    rest.push(best);
  }
  const heap = new Heap(),
    edges = new Map();
  let share = 0,
    found = 0;
  for (const at of starts)
    heap.push({
      bound: rest[depth][at] / starts.length,
      v: 1 / starts.length,
      l: depth,
      at,
      up: null,
    });
  while (heap.items.length && found < k) {
    const now = heap.pop();
    if (!(now.bound > 0)) break;
    if (now.l === 0) {
      found += 1;
      share += now.v;
      for (let e = now; e.up; e = e.up) {
        const key = `${e.l}.${e.up.at}.${e.at}`,
          edge = edges.get(key) || { l: e.l, i: e.up.at, j: e.at, v: 0 };
        edge.v += now.v;
        edges.set(key, edge);
      }
      continue;
    }
    const m = layers[now.l - 1];
    for (let j = 0; j < n; j++) {
      const v = now.v * m[now.at * n + j];
      if (v > 0) heap.push({ bound: v * rest[now.l - 1][j], v, l: now.l - 1, at: j, up: now });
    }
  }
  return { edges: [...edges.values()].sort((a, b) => b.v - a.v), share, paths: found };
}
