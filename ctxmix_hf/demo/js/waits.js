/* What a part of the page waits for: how long or how far it is, and the button that stops it. One for all of them. */

const made = (tag, name) => {
  const e = document.createElement(tag);
  if (name) e.className = name;
  return e;
};

function build(stop) {
  const line = made("div", "ctxmix-wait");
  const box = made("div");
  const bar = made("progress");
  bar.setAttribute("aria-label", "Part that is done");
  const button = made("button");
  button.type = "button";
  button.textContent = "Stop";
  button.onclick = stop;
  const said = made("span");
  said.setAttribute("role", "status");
  const seconds = made("span");
  seconds.setAttribute("aria-hidden", "true"); // or every second would be read aloud
  box.append(bar, said, seconds, button);
  line.append(box);
  Object.assign(line, { bar, said, seconds });
  return line;
}

/** Above a picture, while its answer is on its way. `after`: seconds; `progress`: what the server says; none: nothing is awaited. */
export function wait(host, slot, awaited, { after, progress }, stop) {
  const before = host.previousElementSibling;
  let line = before && before.matches(".ctxmix-wait") ? before : null;
  if (!awaited || (after < 1 && !progress)) {
    if (line) line.remove();
    return;
  }
  if (!line) {
    line = build(() => stop(line.dataset.stops));
    host.before(line);
  }
  line.dataset.slot = slot;
  line.dataset.stops = awaited;
  const said = progress ? progress.said : "Computing";
  if (line.said.textContent !== said) line.said.textContent = said;
  line.seconds.textContent = after ? `${after} s` : "";
  line.classList.toggle("ctxmix-progress", !!progress);
  line.bar.hidden = !(progress && progress.of);
  if (!line.bar.hidden) Object.assign(line.bar, { max: progress.of, value: progress.done });
}
