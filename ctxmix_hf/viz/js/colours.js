/* Colour maps: stops of RGB, interpolated linearly; all monotone in lightness, safe for the colour-blind. */
const SCALES = {
  blues: {
    light: ["f7fafd", "d3e3f3", "94c0e2", "4391c9", "135aa3", "062a5e"],
    dark: ["14181f", "17334f", "1f5d8f", "3b91c9", "8cc8ea", "f1fbff"],
  },
  cividis: ["00204d", "31446b", "666970", "958f78", "cbba69", "ffea46"],
  viridis: ["440154", "414487", "2a788e", "22a884", "7ad151", "fde725"],
  magma: ["000004", "3b0f70", "8c2981", "de4968", "fe9f6d", "fcfdbf"],
  greys: {
    light: ["ffffff", "d9d9d9", "a6a6a6", "737373", "404040", "000000"],
    dark: ["14181f", "3a3f47", "6b7078", "9a9ea5", "cfd2d6", "ffffff"],
  },
};
const SIGNED = {
  light: ["8a3d00", "d9781e", "f6c08a", "f7f7f7", "9cc7e4", "2f7fbc", "0a3d73"],
  dark: ["ffc285", "d9822b", "7a4516", "14181f", "1b4f7d", "4a9bd6", "c3e6ff"],
};
const HEAT = "d7301f"; // over a grey picture
const [VEIL, MIDDLE] = [0.85, 128]; // the most of it, and the grey that legends show it on
const rgb = (hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));

export const MAPS = Object.keys(SCALES);

/** 256 colours, three bytes each. */
export function palette(name, signed, dark) {
  const entry = signed ? SIGNED : SCALES[name] || SCALES.blues;
  const stops = (Array.isArray(entry) ? entry : entry[dark ? "dark" : "light"]).map(rgb);
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(at));
    const f = at - k;
    for (let c = 0; c < 3; c++) {
      table[3 * i + c] = Math.round(stops[k][c] * (1 - f) + stops[k + 1][c] * f);
    }
  }
  return table;
}

/** Over a picture: one hue, more of it the larger the value. */
export function hue(name, dark) {
  if (name === "blues") return rgb(HEAT);
  return Array.from(palette(name, false, dark).slice(-3));
}

/** How much of the hue a value gets. */
export const veil = (value, top) => VEIL * Math.max(0, Math.min(1, value / top));

/** The same as 256 colours over a middle grey: for the legend, and for what is no part of the picture. */
export function veiled(colour) {
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const share = veil(i, 255);
    for (let c = 0; c < 3; c++)
      table[3 * i + c] = Math.round(MIDDLE * (1 - share) + colour[c] * share);
  }
  return table;
}

/** The colour of a value: `top` is where the scale ends; a signed scale has its zero in the middle. */
export function shade(table, value, top, signed) {
  const at = signed ? 127.5 + (127.5 * value) / top : (255 * value) / top;
  const k = 3 * Math.max(0, Math.min(255, Math.round(at)));
  return [table[k], table[k + 1], table[k + 2]];
}

const light = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);

/** WCAG's relative luminance of an RGB colour. */
export function luminance([r, g, b]) {
  return 0.2126 * light(r / 255) + 0.7152 * light(g / 255) + 0.0722 * light(b / 255);
}

/** Black or white, whichever contrasts more with a colour: at least 4.5 to 1 on any. */
export const inkOn = (colour) => (luminance(colour) > 0.179 ? "#000" : "#fff");

/** Colours of text and lines; `mark` is the chosen row. */
export const inks = (dark) =>
  dark
    ? { text: "#d7dce3", dim: "#9aa3af", back: "#0f1319", mark: "#ffb454", own: "#7d8896" }
    : { text: "#1f2733", dim: "#5b6675", back: "#ffffff", mark: "#c2410c", own: "#7d8896" };

/** Is the page around us dark? Notebooks, editors and the Space each say it in their own way. */
export function isDark() {
  const body = document.body;
  if (body.classList.contains("dark") || body.classList.contains("vscode-dark")) return true;
  if (body.dataset.jpThemeLight === "false") return true;
  if (body.classList.contains("vscode-light") || body.dataset.jpThemeLight === "true") return false;
  if (document.querySelector(".gradio-container")) return false;
  return !!window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)").matches;
}
