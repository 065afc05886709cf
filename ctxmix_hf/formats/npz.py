"""`.npz`: the tensors as compressed NumPy arrays, the rest as the JSON text `ctxmix`."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctxmix_hf.errors import InputError
from ctxmix_hf.formats import FORMATS, Format
from ctxmix_hf.formats.reading import AXES, MAX_HEADER, Held, Shape, require_size
from ctxmix_hf.formats.schema import Saved, header_text, held_tensors


def _write(result: Saved, path: Path) -> None:
    arrays = {
        name: (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        for name, value in held_tensors(result).items()
    }
    with path.open("wb") as handle:
        np.savez_compressed(handle, ctxmix=np.array(header_text(result)), **arrays)  # type: ignore[arg-type]


@contextmanager
def _read(path: Path, max_bytes: int) -> Iterator[tuple[Any, Held]]:
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        unknown = next(
            (name for name in entries if name.removesuffix(".npy") not in {"ctxmix", *AXES}), None
        )
        if unknown is not None or len(entries) != len(archive.infolist()):
            raise InputError(f"it holds {unknown!r:.80}, which is not part of a result.")
        if "ctxmix.npy" not in entries:
            raise InputError("it has no header, so it is not a ctxmix result.")
        kind, shape, read = _npy(archive, entries["ctxmix.npy"], min(max_bytes, MAX_HEADER))
        if kind.kind != "U" or shape:
            raise InputError("its header is not text.")
        header = json.loads(str(read().reshape(())))
        held: dict[str, tuple[Shape, Callable[[], Any]]] = {}
        for filename in entries:
            name = filename.removesuffix(".npy")
            if name != "ctxmix":
                kind, shape, read = _npy(archive, entries[filename], max_bytes)
                if kind.kind != "f":
                    raise InputError(f"{name} holds {kind}, expected floating point numbers.")
                held[name] = (shape, read)
        yield header, held


def _npy(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, max_bytes: int
) -> tuple[Any, Shape, Callable[[], Any]]:
    """dtype, shape and reader of an entry; its own header must agree with the archive's about its size."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{info.filename!r:.40} is compressed in a way that is not used here.")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
        reader = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, kind = reader(file)  # type: ignore[no-untyped-call]
        begin = file.tell()
    if kind.hasobject or min(shape, default=0) < 0:
        raise InputError(f"{info.filename!r:.40} holds no plain array.")
    length = math.prod(shape) * kind.itemsize
    require_size(length, max_bytes)
    if begin + length != info.file_size:
        raise InputError(
            f"{info.filename!r:.40} has {info.file_size} bytes where its shape {shape} needs {begin + length}."
        )

    def read() -> Any:
        with archive.open(info) as file:
            file.read(begin)
            data = np.frombuffer(file.read(length), dtype=kind)
        return data.reshape(shape, order="F" if fortran else "C")

    return kind, shape, read


FORMATS.register(".npz")(Format(_write, _read))
