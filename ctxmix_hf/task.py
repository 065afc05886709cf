"""Makes `pipeline("context-mixing")` known to transformers, whichever of the two is imported first,
and importing neither.

transformers keeps its tasks in a dict that exists once `transformers.pipelines` is imported. If
that has happened, the task is added at once; if not, a finder on `sys.meta_path` waits for it. What
is added is an entry that imports our pipeline (and torch) when somebody asks for the task, so
`import ctxmix_hf` stays light and `transformers.pipelines` never waits for us.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ctxmix_hf.errors import OptionError

TASK = "context-mixing"
HOME = "transformers.pipelines"


class _Entry(dict[str, Any]):
    """What transformers keeps of a task; the class and the models it takes are looked up when a pipeline is made."""

    def __missing__(self, key: str) -> Any:
        if key == "default":  # asked for when no model was named
            raise OptionError(
                f"pipeline({TASK!r}) has no model of its own: name one, pipeline({TASK!r}, model=...)."
            )
        ours, transformers = (
            importlib.import_module("ctxmix_hf.pipeline"),
            importlib.import_module("transformers"),
        )
        self.update({"impl": ours.ContextMixingPipeline, "pt": (transformers.AutoModel,), "tf": ()})
        ours.ContextMixingPipeline._registered_impl = {
            TASK: self
        }  # as transformers' own register_pipeline does
        if key not in self:
            raise KeyError(key)
        return self[key]


class _Waiting(MetaPathFinder):
    """Finds `transformers.pipelines` as the others do, and adds the task when it has been executed."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != HOME or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.now = False
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        plain = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            with contextlib.suppress(ValueError):  # another thread was here before
                sys.meta_path.remove(self)
            _add(module)

        loader.exec_module = exec_module
        return spec


def _add(pipelines: ModuleType) -> None:
    pipelines.PIPELINE_REGISTRY.supported_tasks.setdefault(TASK, _Entry(type="text"))


def register() -> None:
    """Now, or as soon as `transformers.pipelines` is there; again is harmless."""
    loaded = sys.modules.get(HOME)
    if hasattr(loaded, "PIPELINE_REGISTRY"):
        assert loaded is not None
        _add(loaded)
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())
