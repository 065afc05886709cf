/* The widget's controls: each one changes a key of its state. */
import { MAPS } from "./colours.js";

export function make(tag, cls, text) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}

function button(text, said, onclick, cls = "") {
  const b = make("button", cls, text);
  b.type = "button";
  b.onclick = onclick;
  if (said) b.title = said;
  if (said) b.setAttribute("aria-label", said);
  return b;
}

function group(name, buttons) {
  const box = make("div", "cmx-tabs");
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", name);
  box.append(...buttons);
  return box;
}

function field(text, control) {
  const l = make("label", "cmx-field");
  l.append(make("span", "", text), control);
  return l;
}

function select(w, key, text, options) {
  const e = make("select");
  e.dataset.key = key;
  for (const [value, name] of options) {
    const o = make("option", "", name);
    o.value = value;
    e.append(o);
  }
  e.onchange = () => w.set({ [key]: e.value });
  w.inputs[key] = e;
  w.panel.append(field(text, e));
}

function check(w, key, text, said = "") {
  const e = make("input");
  e.type = "checkbox";
  if (key) {
    e.dataset.key = key;
    e.onchange = () => w.set({ [key]: e.checked ? 1 : 0 });
    w.inputs[key] = e;
  }
  const l = make("label", "cmx-check");
  if (said) l.title = said;
  l.append(e, text);
  w.panel.append(l);
  return e;
}

function range(w, key, low, high, said) {
  const e = make("input");
  e.type = "range";
  e.min = low;
  e.max = high;
  e.dataset.key = key;
  e.setAttribute("aria-label", said);
  e.oninput = () => w.set({ [key]: Number(e.value) });
  w.inputs[key] = e;
  return e;
}

function layerControl(w) {
  const all = w.model.layers;
  const box = make("span", "cmx-layer");
  w.play = button("▶", "Play through the layers", () => w.toggle(), "cmx-play");
  w.layerText = make("output");
  box.append(w.play, range(w, "layer", all[0], all[all.length - 1], "Layer"), w.layerText);
  w.bar.append(field("Layer", box));
}

function viewControl(w) {
  const views = [
    ["map", "Map"],
    ["layers", "Layers × tokens"],
  ];
  if (w.p.maps.layer && !w.model.signed) views.push(["paths", "Paths"]);
  if (w.model.heads) views.push(["heads", "Heads"]);
  if (w.p.image) views.unshift(["image", "Picture"]);
  w.viewButtons = views.map(([id, name]) => {
    const b = button(name, "", () => w.set({ view: id }));
    b.dataset.view = id;
    return b;
  });
  w.bar.append(group("View", w.viewButtons));
}

/** Everything above the picture: the view and the layer in a bar, the rest folded into a panel. */
export function controls(w) {
  const { p, model } = w;
  w.inputs = {};
  viewControl(w);
  layerControl(w);
  w.edgeText = make("output");
  const paths = make("span", "cmx-layer");
  paths.append(range(w, "k", 4, 80, "Number of paths"), w.edgeText);
  w.pathField = field("Paths", paths);
  w.bar.append(w.pathField);
  w.zoomField = group("Zoom", [
    button("−", "Smaller", () => w.zoom(-1)),
    button("+", "Larger", () => w.zoom(1)),
  ]);
  w.bar.append(w.zoomField);
  if (model.scopes.length > 1) {
    const whole = p.maps.input.label || "from the input";
    select(w, "scope", "Contributions", [
      ["input", whole],
      ["layer", "within the layer"],
    ]);
  }
  if (p.groups.length < p.tokens.length) {
    select(w, "unit", "Tokens", [
      ["word", "words"],
      ["piece", "sub-words"],
    ]);
  }
  const scales = [
    ["none", "values"],
    ["row", "÷ row sum"],
    ["max", "÷ largest"],
  ];
  select(
    w,
    "norm",
    "Scale",
    scales.filter(([id]) => id !== "row" || !model.signed),
  );
  if (model.depth > 1) {
    select(w, "range", "Colour range", [
      ["all", "same for all layers"],
      ["layer", "each layer its own"],
    ]);
  }
  if (!model.signed)
    select(
      w,
      "cmap",
      "Colours",
      MAPS.map((m) => [m, m]),
    );
  if (p.special.some(Boolean)) check(w, "specials", "special tokens");
  check(w, "diagonal", "own token in colour");
  if (!model.signed) {
    check(
      w,
      "even",
      "all-equal baseline",
      "Beside each value, what it would be if every piece gave the same",
    );
  }
  w.several = check(w, "", "add rows (Σ)", "Choose several targets and see their sum");
  const kinds = ["PNG", "SVG"];
  w.panel.append(
    group(
      "Save",
      kinds.map((kind) => button(kind, `Save this picture as ${kind}`, () => w.save(kind))),
    ),
  );
  w.more = button("Options", "", () => w.unfold(w.panel.hidden), "cmx-play");
  w.bar.append(w.more);
  w.unfold(false);
}
