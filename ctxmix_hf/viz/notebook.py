"""The widget in a live notebook: the same script and values as everywhere, and what is clicked is known in Python.

It needs anywidget (extra `notebook`) and a kernel; without them a map is shown as the HTML of `canvas.py`.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

from ctxmix_hf.errors import MissingDependencyError
from ctxmix_hf.results.base import in_notebook
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.targets import places
from ctxmix_hf.viz.canvas import script, style
from ctxmix_hf.viz.payload import payload

RENDER = """
export default {
  render({ model, el }) {
    const root = document.createElement("div");
    el.append(root);
    const widget = window.ctxmix.mount(root, model.get("payload"), model.get("state"), (now) => {
      model.set("state", now);
      model.save_changes();
    });
    const follow = () => {
      const now = { ...widget.state(), ...model.get("state") };
      if (JSON.stringify(now) === JSON.stringify(widget.state())) return;
      widget.s = widget.clean(now);
      widget.redraw();
    };
    model.on("change:state", follow);
    return () => model.off("change:state", follow);
  },
};
"""
_shown: dict[int, Any] = {}  # id of a map that is still there -> its latest widget


@cache
def widget_class() -> Any:
    """`MapWidget`, a subclass of `anywidget.AnyWidget`."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingDependencyError.of("anywidget", "notebook") from error

    class MapWidget(anywidget.AnyWidget):  # type: ignore[misc]
        """A map that answers to clicks. `target` is what is chosen in it; setting it moves the picture."""

        _esm = script() + RENDER
        _css = style()
        payload = traitlets.Dict().tag(sync=True)
        state = traitlets.Dict().tag(
            sync=True
        )  # the display options, as `m.to_view(**options)` takes them

        def __init__(self, m: ContextMixingMap, example: int, **display: Any) -> None:
            one = m[example]
            self._tokens, self._causal = one.tokens[0], bool(one.meta.get("causal"))
            super().__init__(payload=payload(m, example, **display))

        @property
        def target(self) -> int | list[int] | None:
            """The position that is chosen, or all of them (a word's pieces, several rows); None: none is."""
            shown = {
                "unit": "word",
                "pin": self.payload["pin"],
                **self.payload["state"],
                **self.state,
            }
            pins = [int(place) for place in str(shown["pin"]).replace(",", ".").split(".") if place]
            units = self.payload["groups"] if shown["unit"] == "word" else [[pin] for pin in pins]
            chosen = [place for unit in units if set(unit) & set(pins) for place in unit]
            return chosen[0] if len(chosen) == 1 else chosen or None

        @target.setter
        def target(self, wanted: Any) -> None:
            pins = [] if wanted is None else places(wanted, self._tokens, self._causal)
            self.state = {**self.state, "pin": ".".join(map(str, pins))}

    return MapWidget


def map_widget(m: ContextMixingMap, example: int = 0, **display: Any) -> Any:
    """The widget of one example of a map; `m.target` follows the latest one."""
    made = widget_class()(m, example, **display)
    if id(m) not in _shown:
        weakref.finalize(m, _shown.pop, id(m), None)
    _shown[id(m)] = made
    return made


def map_target(m: ContextMixingMap) -> int | list[int] | None:
    """What is chosen in the map's latest widget; None where it has none."""
    return _shown[id(m)].target if id(m) in _shown else None


def map_bundle(m: ContextMixingMap, example: int = 0, **display: Any) -> dict[str, Any]:
    """The live widget as a notebook takes it, beside the HTML; empty where there is no kernel or no anywidget."""
    if not in_notebook():
        return {}
    try:
        made = map_widget(m, example, **display)._repr_mimebundle_()
    except MissingDependencyError:
        return {}
    return dict(made[0] if isinstance(made, tuple) else made or {})
