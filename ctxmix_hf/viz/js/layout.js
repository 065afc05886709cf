/* Where everything stands, in pixels: pure arithmetic, tested without a browser. */
export const FOOT = 46;
const SIZE = 12;
const SLANT = 0.9; // radians: labels of columns that have room
const LEAST = 4; // pixels of a cell; below this the picture scrolls instead

/** Does the text run from right to left? Its first letter that has a direction says so. */
export function rightToLeft(text) {
  const found = /[\p{L}]/u.exec(String(text || "").replace(/\[[A-Z]+\]/g, ""));
  return !!found && /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(found[0]);
}

/**
 * Which of `count` labels are shown where one takes `need` pixels and a cell has `step`: as many as do not touch.
 * `kept` (chosen or pointed at) come first; others give way to them.
 */
export function thinned(count, step, need, kept = []) {
  const every = Math.max(1, Math.ceil(need / step));
  const shown = [];
  const free = (at) => shown.every((other) => Math.abs(other - at) >= every);
  for (const at of kept) if (at >= 0 && at < count && free(at)) shown.push(at);
  if (every === 1) return Array.from({ length: count }, (_, at) => at);
  for (let at = 0; at < count; at += every) if (free(at)) shown.push(at);
  return shown.sort((a, b) => a - b);
}

/** Whose labels come first: the targets, then the `most` sources of largest value. */
export function toName(chosen, value, most = Infinity) {
  const size = (j) => Math.abs(value[j]);
  const others = Array.from(value.keys()).filter((j) => size(j) > 0 && !chosen.includes(j));
  return [...chosen, ...others.sort((a, b) => size(b) - size(a)).slice(0, most)];
}

/** A sentence in lines that fit a width, letters of this size taken as wide ones. */
export function wrapped(text, room, size) {
  const most = Math.floor(room / (0.55 * size));
  const lines = [""];
  for (const word of text.split(" ")) {
    const at = lines.length - 1;
    if (lines[at] && `${lines[at]} ${word}`.length > most) lines.push(word);
    else lines[at] = lines[at] ? `${lines[at]} ${word}` : word;
  }
  return lines;
}

/** How far apart slanted labels must stand along their axis, so that lines of this size never touch. */
export const pitch = (slope, size) => (1.1 * size) / Math.sin(slope);

/**
 * The whole picture.
 * view, n columns, depth, heads; widest: of the labels, in pixels; room: the box's width; zoom; image: its grid.
 * x, y: where the cells begin; cw, ch: of a cell; width, height: of all of it, scrolled or not.
 */
export function plan({ view, n, depth, heads, widest, room, zoom = 1, image, mirrored = false }) {
  if (view === "image") return imagePlan(image, room);
  if (view === "heads") return { ...headsPlan(n, heads, room, zoom, widest), mirrored };
  const wide = Math.min(120, Math.max(24, widest) + 8, Math.max(48, 0.3 * room));
  const left = view === "map" ? wide : 58;
  const steep = (room - left) / n < 17;
  const slope = steep ? Math.PI / 2 : SLANT;
  const head = Math.sin(slope) * wide + 12;
  const over = steep ? 6 : Math.cos(slope) * wide;
  const most = view === "map" ? (n > 24 ? 30 : 38) : 52;
  const cw = zoom * Math.max(LEAST, Math.min(most, (room - left - over) / n));
  const size = Math.min(SIZE, Math.max(9, cw / 1.12)); // small enough for every label, where that can be read
  const ch = { map: cw, layers: Math.min(30, Math.max(16, cw)), paths: 56 }[view];
  const base = { view, x: left, cw, cols: n, slope, depth, size, mirrored, foot: FOOT };
  const width = Math.ceil(left + n * cw + over);
  if (view === "paths") {
    const high = depth * ch + 12 + head;
    return {
      ...base,
      y: 14,
      rows: 1,
      ch: high,
      gap: ch,
      width,
      height: Math.ceil(14 + high + FOOT),
    };
  }
  const rows = view === "map" ? n : depth;
  return { ...base, y: head, ch, rows, width, height: Math.ceil(head + rows * ch + FOOT) };
}

function imagePlan(image, room) {
  const [rows, cols] = image.grid;
  const side = Math.min(room, 520);
  const cw = side / cols;
  const ch = (side * (image.ratio || rows / cols)) / rows;
  const height = Math.ceil(rows * ch + FOOT);
  return {
    view: "image",
    x: 0,
    y: 0,
    cw,
    ch,
    rows,
    cols,
    offset: image.offset,
    width: side,
    height,
    foot: FOOT,
  };
}

/** A small map of each head, side by side; rows are named left of them, columns under the last of each column of tiles. */
function headsPlan(n, heads, room, zoom, widest) {
  const gap = 14;
  const left = Math.min(72, Math.max(24, widest) + 8, 0.22 * room);
  const free = room - left;
  const across = Math.max(1, Math.min(heads, Math.floor((free + gap) / (zoom * 170 + gap))));
  const tile = Math.max(60, Math.min(zoom * 240, (free - (across - 1) * gap) / across));
  const cw = tile / n;
  const high = tile + 22;
  const tiles = Array.from({ length: heads }, (_, h) => ({
    x: left + (h % across) * (tile + gap),
    y: 20 + Math.floor(h / across) * (high + gap),
  }));
  const width = Math.ceil(left + across * tile + (across - 1) * gap);
  const height = Math.ceil(Math.ceil(heads / across) * (high + gap) + left + FOOT);
  return {
    view: "heads",
    x: 0,
    y: 0,
    cw,
    ch: cw,
    rows: n,
    cols: n,
    tiles,
    tile,
    left,
    across,
    width,
    height,
    foot: FOOT,
  };
}

/** What of it is seen through a box of this size, scrolled this far: labels stay, cells move. */
export function seen(g, room, tall, scroll = { x: 0, y: 0 }) {
  const width = Math.min(g.width, room);
  const height = Math.min(g.height, tall);
  const sx = Math.max(0, Math.min(scroll.x, g.width - width));
  const sy = Math.max(0, Math.min(scroll.y, g.height - height));
  const whole = g.view === "image" || g.view === "heads" || g.view === "paths";
  return { ...g, sx, sy, seenWidth: width, seenHeight: height, whole };
}

/** The place of a column on the picture: a text that runs from right to left is read so here as well. */
export const column = (g, j) => (g.mirrored ? g.cols - 1 - j : j);

/** The cell under a point of the canvas: { row, col }, col undefined on a row's label; null beside it. */
export function cellAt(g, x, y) {
  const [px, py] = [x + (g.whole || x >= g.x ? g.sx : 0), y + g.sy];
  if (!g.whole && (y < g.y || y > g.seenHeight - g.foot)) return null;
  if (g.view === "heads") {
    const head = g.tiles.findIndex(
      (t) => px >= t.x && px < t.x + g.tile && py >= t.y && py < t.y + g.tile,
    );
    if (head < 0) return null;
    const { x: left, y: up } = g.tiles[head];
    return {
      head,
      row: Math.floor((py - up) / g.ch),
      col: column(g, Math.floor((px - left) / g.cw)),
    };
  }
  const row = Math.floor((py - g.y) / g.ch);
  const at = Math.floor((px - g.x) / g.cw);
  if (row < 0 || row >= g.rows || at >= g.cols) return null;
  return { row, col: at < 0 ? undefined : column(g, at) };
}

/** Where to scroll so that a row is seen. */
export function shownRow(g, row) {
  const [top, end] = [row * g.ch, (row + 1) * g.ch];
  const room = g.seenHeight - g.y - g.foot;
  if (top < g.sy) return top;
  return end > g.sy + room ? end - room : g.sy;
}
