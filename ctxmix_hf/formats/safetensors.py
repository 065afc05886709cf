"""`.safetensors`: the tensors as they are, the rest as the metadata `ctxmix`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from ctxmix_hf.errors import InputError
from ctxmix_hf.formats import FORMATS, Format
from ctxmix_hf.formats.reading import AXES, Held, Shape, require_size
from ctxmix_hf.formats.schema import Saved, header_text, held_tensors


def _write(result: Saved, path: Path) -> None:
    save_file(held_tensors(result), str(path), metadata={"ctxmix": header_text(result)})


@contextmanager
def _read(path: Path, max_bytes: int) -> Iterator[tuple[Any, Held]]:
    require_size(path.stat().st_size, max_bytes)
    with safe_open(str(path), framework="pt") as data:
        held: dict[str, tuple[Shape, Callable[[], Any]]] = {}
        for name in data.keys():  # noqa: SIM118
            part = data.get_slice(name)
            if name not in AXES or part.get_dtype() not in ("F64", "F32", "F16", "BF16"):
                raise InputError(
                    f"it holds {name!r:.80} ({part.get_dtype()}), which is not part of a result."
                )
            held[name] = (tuple(part.get_shape()), partial(data.get_tensor, name))
        yield json.loads((data.metadata() or {}).get("ctxmix", "null")), held


FORMATS.register(".safetensors")(Format(_write, _read))
