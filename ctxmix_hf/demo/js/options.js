/* The settings of the chosen method, made from the registry's options: each one is written to the page's field of options. */

/** `distance=euclidean,per_head=1` as entries. */
export const readOptions = (text) =>
  Object.fromEntries(
    String(text || "")
      .split(",")
      .map((part) => part.split("=").map((x) => x.trim()))
      .filter(([key, value]) => key && value),
  );

/** Entries as text; what is as the method starts is left out. */
export function writeOptions(chosen, known) {
  const said = known.filter((o) => chosen[o.name] !== undefined && chosen[o.name] !== o.start);
  return said.map((o) => `${o.name}=${chosen[o.name]}`).join(",");
}

let helps = 0;

function control(option, value, change) {
  const e = document.createElement(option.choices ? "select" : "input");
  e.dataset.option = option.name;
  (option.choices || []).forEach((choice, k) => {
    const o = document.createElement("option");
    o.value = choice;
    o.textContent = option.labels[k];
    e.append(o);
  });
  if (option.kind === "bool") {
    e.type = "checkbox";
    e.checked = value === "1";
  } else {
    if (!option.choices) e.type = "number";
    if (option.kind === "float") e.step = "any";
    e.value = value;
  }
  e.onchange = () => change(option.kind === "bool" ? String(Number(e.checked)) : e.value);
  const label = document.createElement("label");
  label.append(option.label, e);
  const box = document.createElement("div");
  box.append(label);
  if (option.help) {
    const help = document.createElement("small");
    help.id = `ctxmix-help-${++helps}`;
    help.textContent = option.help;
    e.setAttribute("aria-describedby", help.id);
    box.append(help);
  }
  return box;
}

/** Put a value in one of Gradio's fields as if it had been typed, and Enter pressed. */
export function type(selector, value) {
  const box = document.querySelector(selector);
  if (!box) return;
  box.value = value;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  box.dispatchEvent(new KeyboardEvent("keypress", { key: "Enter", bubbles: true }));
}

/** Shows the settings of a method in a place of the page; they are kept in a field of it. */
export function settings(space, now, place, kept) {
  const host = document.querySelector(place);
  const field = `${kept} textarea, ${kept} input`;
  const known = space.options[now.method] || [];
  const key = JSON.stringify([now.method, now.options]);
  if (!host || host.dataset.shown === key) return;
  const chosen = readOptions(now.options);
  const lost = Object.keys(chosen).some((name) => !known.some((o) => o.name === name));
  if (lost) type(field, writeOptions(chosen, known)); // another method: what it does not know goes
  host.dataset.shown = key;
  const open = host.querySelector("details") && host.querySelector("details").open;
  const focused = document.activeElement && document.activeElement.dataset.option;
  host.textContent = "";
  if (!known.length) return;
  const box = document.createElement("details");
  const title = document.createElement("summary");
  title.textContent =
    place === "#method-options" ? "Settings of the method" : "Settings of the second method";
  box.className = "ctxmix-settings";
  box.open = open || Object.keys(chosen).length > 0;
  box.append(title);
  for (const option of known) {
    const value = chosen[option.name] === undefined ? option.start : chosen[option.name];
    const change = (to) => type(field, writeOptions({ ...chosen, [option.name]: to }, known));
    box.append(control(option, value, change));
  }
  host.append(box);
  const again = focused && host.querySelector(`[data-option="${focused}"]`);
  if (again) again.focus();
}
