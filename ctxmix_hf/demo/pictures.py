"""Pictures: examples drawn here (so that a link can name them), and a vision model's map over what the model saw."""

from __future__ import annotations

import base64
import binascii
import io
import json
import warnings
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ctxmix_hf.demo.limits import check_seconds, info_of
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import SHELF
from ctxmix_hf.errors import InputError, first_line
from ctxmix_hf.text.batch import read_images
from ctxmix_hf.viz.names import people_name
from ctxmix_hf.viz.signals import patch_grid

DRAWN = ("shapes", "landscape", "board")


@cache
def digits() -> dict[str, list[int]]:
    """Handwritten digits of 8 by 8 pixels that the bundled model has not seen (training/train_digits.py)."""
    text = (resources.files("ctxmix_hf") / "demo" / "digits.json").read_text(encoding="utf-8")
    return {row["name"]: row["pixels"] for row in json.loads(text)}


EXAMPLES = (*digits(), *DRAWN)


@cache
def example(name: str) -> Any:
    """One of the example pictures, 224 by 224."""
    from PIL import Image, ImageDraw

    if name not in EXAMPLES:
        raise InputError(
            f"There is no example picture {name!r}. Choose one of {', '.join(EXAMPLES)}."
        )
    if name in digits():
        grey = (np.array(digits()[name]).reshape(8, 8) * 255 / 16).round().astype(np.uint8)
        return Image.fromarray(grey).convert("RGB").resize((224, 224), Image.Resampling.NEAREST)
    image = Image.new(
        "RGB", (224, 224), {"shapes": "#f4efe6", "landscape": "#9fd0f2", "board": "#f5f5f0"}[name]
    )
    draw = ImageDraw.Draw(image)
    if name == "shapes":
        draw.ellipse((24, 28, 110, 114), fill="#d1495b")
        draw.rectangle((126, 110, 200, 184), fill="#2f7fbc")
        draw.polygon([(30, 200), (70, 132), (112, 200)], fill="#edae49")
    elif name == "landscape":
        draw.ellipse((150, 24, 196, 70), fill="#ffd84d")
        draw.polygon([(0, 160), (70, 80), (140, 160)], fill="#7d8ea3")
        draw.polygon([(80, 165), (160, 100), (224, 165)], fill="#5f7187")
        draw.rectangle((0, 158, 224, 224), fill="#6aa84f")
    else:
        for k in range(0, 64, 2):
            row, col = divmod(k + (k // 8) % 2, 8)
            draw.rectangle((28 * col, 28 * row, 28 * col + 27, 28 * row + 27), fill="#3b4252")
    return image


def read(given: str) -> Any:
    """A picture from the name of an example or from a data URL (`data:image/png;base64,...`)."""
    if not given.startswith("data:"):
        return example(given)
    try:
        data = base64.b64decode(given.partition(",")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            "The picture could not be read: its data URL is not base64. Send a PNG or JPEG as a data URL."
        ) from error
    return opened(io.BytesIO(data))


def opened(file: str | io.BytesIO) -> Any:
    """A picture from a file, upright, in colour."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(file)
        check_pixels(picture)
        return ImageOps.exif_transpose(picture).convert("RGB")
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(TOO_MANY) from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise InputError("The picture could not be read: send a PNG or JPEG.") from error


TOO_MANY = f"The picture has too many pixels; this page takes at most {SETTINGS.pixels:,}. Send a smaller one."


def check_pixels(image: Any) -> None:
    """Told by the file's header, before the pixels are unpacked."""
    if image.width * image.height > SETTINGS.pixels:
        raise InputError(TOO_MANY)


def map_of(image: Any, model: str, method: str) -> tuple[Any, Any, str]:
    """(the map, the picture as the model saw it, what the model takes it for)."""
    if image is None:
        raise InputError("Choose a picture first.")
    info_of(method)
    held = SHELF.get(model)
    if "pixel_values" not in getattr(held.model, "main_input_name", "pixel_values"):
        raise InputError(
            f"{model} does not read pictures: type the name or path of a vision model."
        )
    from transformers import AutoImageProcessor

    reader: Any = AutoImageProcessor
    try:
        processor = reader.from_pretrained(held.files.where, **held.files.keywords)
    except (OSError, ValueError) as error:
        raise InputError(f"{model} has no image processor: {first_line(error)}") from error
    check_pixels(image)
    inputs = read_images(held.model, image, processor)
    inputs["pixel_values"] = inputs["pixel_values"].to(held.model.device)
    check_seconds(held, method, patches(held.model.config, inputs["pixel_values"]))
    with held.lock:
        out = held.model(**inputs, output_context_mixing=[method], max_memory=SETTINGS.memory)
    made = next(iter(out.context_mixing.values()))[0]
    return made, _seen(inputs["pixel_values"][0], processor), _said(held.model.config, out)


def _said(config: Any, out: Any) -> str:
    """The class with the largest probability, where there are classes."""
    logits = getattr(out, "logits", None)
    if logits is None or logits.ndim != 2:
        return ""
    logits = logits.detach()
    best = int(logits[0].argmax())
    share = float(logits[0].softmax(dim=-1)[best])
    return f"the model sees {config.id2label.get(best, best)} ({share:.0%})"


def patches(config: Any, pixels: Any) -> int:
    """How many tokens a picture becomes, about."""
    size = getattr(config, "patch_size", 16)
    side = max(1, size if isinstance(size, int) else min(size))
    return max(1, pixels.shape[-1] // side) * max(1, pixels.shape[-2] // side) + 1


def _seen(values: Any, processor: Any) -> Any:
    """Cut, stretched and scaled as the model got it, so that patches lie where the model had them."""
    from PIL import Image

    array = np.moveaxis(np.asarray(values, dtype=np.float64), 0, -1)
    if getattr(processor, "do_normalize", False):
        array = array * np.asarray(processor.image_std) + np.asarray(processor.image_mean)
    return Image.fromarray((255 * array.clip(0, 1)).round().astype(np.uint8)).resize(
        (448, 448), Image.Resampling.NEAREST
    )


def view(image: Any, model: str, method: str, name: str = "") -> dict[str, Any]:
    """For the widget, with the picture; an uploaded one is the path of its file, and has no name, so a link
    cannot carry it.
    """
    image = opened(image) if isinstance(image, str) else image
    made, seen, said = map_of(image, model, method)
    grid, before = patch_grid(made.size)
    file = io.BytesIO()
    seen.save(file, format="JPEG", quality=88)
    source = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    short = model.rstrip("/").rsplit("/", 1)[-1]
    query = {"tab": "image", "picture": name, "vision": model, "vision_method": method}
    labels = {"tokens": _labels(made.size, grid, before)}
    return {
        **made.to_view(title=" · ".join(filter(None, (people_name(method), short, said)))),
        **labels,
        "words": labels["tokens"],
        "pin": "0",
        "query": query,
        "image": {"src": source, "grid": list(grid), "offset": before, "ratio": 1.0},
    }


def _labels(count: int, grid: tuple[int, int], before: int) -> list[str]:
    """[CLS] (and registers), then row.column of each patch, from 1."""
    first = ["[CLS]", *(f"[extra {k}]" for k in range(1, before))][:before]
    return [*first, *(f"{k // grid[1] + 1}.{k % grid[1] + 1}" for k in range(count - before))]
