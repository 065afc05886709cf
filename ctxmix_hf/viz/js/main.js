/* ctxmix heatmap: notebook, standalone HTML and Space share these modules. No dependencies, nothing fetched. */
import { inkOn, isDark, luminance, MAPS, palette } from "./colours.js";
import { pathsOf } from "./draw.js";
import { DEFAULTS, Model } from "./model.js";
import { extreme, number } from "./numbers.js";
import { CanvasPen, escape, SvgPen } from "./pens.js";
import { Widget } from "./widget.js";

const widgets = [];

/** Draw a payload in an element; `state` are its first display options, `onchange` hears of every change. */
function mount(root, payload, state, onchange) {
  const made = new Widget(root, payload, state, onchange);
  root.ctxmix = made;
  for (let k = widgets.length - 1; k >= 0; k--)
    if (!widgets[k].root.isConnected) widgets.splice(k, 1);
  widgets.push(made);
  return made;
}

window.ctxmix = {
  version: 3,
  widgets,
  mount,
  Widget,
  Model,
  CanvasPen,
  SvgPen,
  DEFAULTS,
  MAPS,
  palette,
  isDark,
  inkOn,
  luminance,
  number,
  extreme,
  escape,
  paths: pathsOf,
};
