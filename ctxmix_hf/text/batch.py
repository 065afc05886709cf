"""Whatever a user holds (texts, tensors, a tokenizer's or processor's output, an image, a waveform)
as a model is called with it: the only calls of a tokenizer or a processor.
"""

from __future__ import annotations

import inspect
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from ctxmix_hf.errors import InputError, InputTypeError
from ctxmix_hf.heads import head_of
from ctxmix_hf.text.inputs import with_decoder
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.tokens import WORD_MARKS, Tokens, read_encoding
from ctxmix_hf.unwrapping import base_model

READS = {
    "input_ids": "text",
    "pixel_values": "images",
    "input_values": "sound",
    "input_features": "sound",
}


@dataclass(frozen=True)
class TextBatch:
    """What a model is called with, and what only somebody who saw the text knows."""

    tensors: dict[str, Any]  # on the model's device
    tokens: list[Tokens] | None = None  # None: the record names them
    texts: tuple[Any, ...] | None = None  # the texts or pairs, where texts were given


def reads(model: Model) -> str:
    """`"text"`, `"images"`, `"sound"`, or the name of another main input."""
    name = str(getattr(base_model(model), "main_input_name", "input_ids"))
    return READS.get(name, name)


def read(
    model: Model, given: Any, find_tokenizer: Callable[[], Any], processor: Any = None
) -> TextBatch:
    """One text, pair, image or waveform, a list of them, prepared tensors, or a dict of tensors.

    Args:
        model: The transformers model, or what holds it.
        given: What the user passed. A path names an image or a sound file where the model reads those.
        find_tokenizer: Gives the tokenizer, or None; called only where text is read.
        processor: An image processor or a feature extractor, looked for beside the weights where it is None.

    Raises:
        InputError, InputTypeError: It cannot be read; the sentence says what was expected.
    """
    base, kind = base_model(model), reads(model)
    if kind == "text":
        given = plain_text(given)
    if isinstance(given, Mapping) and not {"array", "sampling_rate"} <= set(given):
        batch = _prepared(given, find_tokenizer)
    elif kind == "text" and not _holds_text(given):
        batch = TextBatch({"input_ids": _ids(base, given)})
    elif kind == "text":
        batch = _texts(base, given, find_tokenizer())
    elif kind == "images":
        batch = TextBatch(read_images(base, given, processor))
    elif kind == "sound":
        batch = TextBatch(_sounds(base, given, processor))
    else:
        raise InputTypeError(
            f"{type(base).__name__} reads {kind!r}: pass a dict of the tensors it is called with."
        )
    tensors = {
        key: _placed(value, base) for key, value in with_decoder(base, batch.tensors).items()
    }
    return replace(batch, tensors=tensors)


def _placed(value: Any, base: PreTrainedModel) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(base.device, base.dtype) if value.is_floating_point() else value.to(base.device)


# ---- text
# -------------------------------------------------------------------------------------------------------------
def plain_text(given: Any) -> Any:
    """spaCy's documents and spans as their texts, also inside lists and pairs; anything else as it is."""
    if type(given).__module__.partition(".")[0] == "spacy":
        return given.text
    if type(given) in (list, tuple):
        return type(given)(plain_text(item) for item in given)
    return given


def _is_text(item: Any) -> bool:
    return isinstance(item, str) or (
        isinstance(item, tuple) and len(item) == 2 and all(isinstance(t, str) for t in item)
    )


def _holds_text(given: Any) -> bool:
    return isinstance(given, str) or (
        isinstance(given, Sequence) and any(isinstance(item, str | tuple) for item in given)
    )


def checked_texts(given: Any) -> list[Any]:
    """Texts or pairs of texts as a list, none empty, all of one kind."""
    texts = [given] if isinstance(given, str | tuple) else list(given)
    if not all(_is_text(item) for item in texts):
        raise InputTypeError("Expected a text, a pair of texts, or a list of them.")
    if any(not "".join(item).strip() for item in texts):
        raise InputError("The text is empty: there is no token to explain.")
    if len({isinstance(item, str) for item in texts}) > 1:
        raise InputError("Pass either single texts or pairs in one batch, not both.")
    return texts


def encode(tokenizer: Tokenizer, texts: Sequence[Any], **options: Any) -> Any:
    """The tokenizer's encoding of texts or pairs, a batch of them: every call of a tokenizer is this one."""
    columns = zip(*((item,) if isinstance(item, str) else item for item in texts), strict=True)
    return tokenizer(*map(list, columns), **options)


def encode_one(tokenizer: Tokenizer, text: str, pair: str | None = None, **options: Any) -> Any:
    """The same of one text or pair, without a batch around it."""
    return tokenizer(text, **options) if pair is None else tokenizer(text, pair, **options)


def _texts(base: PreTrainedModel, given: Any, tokenizer: Tokenizer) -> TextBatch:
    if tokenizer is None:
        raise InputError(
            "No tokenizer is known for this model: pass tokenizer=... or load the model from a folder that holds one."
        )
    texts = checked_texts(given)
    if len(texts) > 1 and tokenizer.pad_token is None:
        raise InputError(
            "This tokenizer has no padding token: explain one text at a time, or set tokenizer.pad_token first."
        )
    encoding = encode(tokenizer, texts, padding=len(texts) > 1, return_tensors="pt")
    choices = (
        head_of(type(base).__name__) == "MultipleChoice"
    )  # the texts are the choices of one question
    taken = inspect.signature(base.forward).parameters
    tensors = {
        key: value[None] if choices else value
        for key, value in encoding.items()
        if key != "token_type_ids" or key in taken
    }
    return TextBatch(tensors, read_encoding(encoding, tokenizer, texts), tuple(texts))


def _ids(base: PreTrainedModel, given: Any) -> Tensor:
    """Token ids `[B, T]` from a tensor, an array or lists of numbers."""
    try:
        found = torch.as_tensor(given) if not isinstance(given, Sequence) or given else None
    except (TypeError, ValueError, RuntimeError):
        found = None
    if (
        found is None
        or found.is_floating_point()
        or found.dtype == torch.bool
        or found.dim() not in (1, 2)
    ):
        what = "an empty list" if isinstance(given, Sequence) and not given else _described(given)
        raise InputTypeError(
            f"{type(base).__name__} reads text: expected a text, a pair, token ids or a dict of tensors, got {what}."
        )
    return found.reshape(1, -1) if found.dim() == 1 else found


def _described(given: Any) -> str:
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given):
        return f"a list of {type(given[0]).__name__}"
    shape = getattr(given, "shape", None)
    return type(given).__name__ + (
        f" of shape {tuple(shape)}" if isinstance(shape, Sequence) else ""
    )


def _prepared(given: Mapping[str, Any], find_tokenizer: Callable[[], Any]) -> TextBatch:
    """A dict of tensors, arrays or lists, such as a tokenizer or a processor returns."""
    tensors = {
        str(key): _tensor(str(key), value) for key, value in given.items() if value is not None
    }
    if not any(isinstance(value, Tensor) for value in tensors.values()):
        held = ", ".join(map(str, given)) or "it is empty"
        raise InputTypeError(
            f"This dict holds no tensors ({held}): pass what the model is called with."
        )
    tokens = None
    if (
        getattr(given, "is_fast", False) and "input_ids" in tensors
    ):  # it remembers which piece belongs to which word
        tokenizer, rows = find_tokenizer(), tensors["input_ids"]
        tokens = (
            None
            if tokenizer is None or rows.dim() != 2
            else read_encoding(given, tokenizer, [None] * len(rows))
        )
    return TextBatch(tensors, tokens)


def _tensor(key: str, value: Any) -> Any:
    if not isinstance(value, list | tuple | np.ndarray) or (
        isinstance(value, tuple) and any(isinstance(v, Tensor) for v in value)
    ):
        return value
    try:
        made = torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{key} holds rows of different lengths: pad them (padding=True) or explain one at a time."
        ) from error
    return made[None] if made.dim() == 1 else made


# ---- images and sound
# -------------------------------------------------------------------------------------------------
def load_processor(base: PreTrainedModel, kind: str) -> Any:
    """The image processor or feature extractor beside the weights; None where there is none on this machine."""
    reader: Any = (
        transformers.AutoImageProcessor if kind == "images" else transformers.AutoFeatureExtractor
    )
    try:
        return reader.from_pretrained(base.config._name_or_path, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError):
        return None


def _need_processor(base: PreTrainedModel, processor: Any, kind: str) -> Any:
    processor = processor or load_processor(base, kind)
    if processor is None:
        what = "image processor" if kind == "images" else "feature extractor"
        raise InputError(
            f"No {what} is known for this model: pass processor=..., or load the model from a folder that holds one."
        )
    return processor


def read_images(base: PreTrainedModel, given: Any, processor: Any) -> dict[str, Any]:
    """`pixel_values` of an image, its path, an array, a list of these, or of tensors that are prepared already."""
    if isinstance(given, Tensor) and given.is_floating_point() and given.dim() in (3, 4):
        return {"pixel_values": given if given.dim() == 4 else given[None]}
    listed = list(given) if isinstance(given, list | tuple) else [given]
    if not listed:
        raise InputError("The batch is empty: there is no image to explain.")
    processor = _need_processor(base, processor, "images")
    return dict(processor(images=[_image(base, item) for item in listed], return_tensors="pt"))


def _image(base: PreTrainedModel, item: Any) -> Any:
    colours = "L" if getattr(base.config, "num_channels", 3) == 1 else "RGB"
    if isinstance(item, str | Path):
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(item) as file:
                return file.convert(colours)
        except (OSError, UnidentifiedImageError) as error:
            raise InputError(
                f"{type(base).__name__} reads images, and {str(item)!r} cannot be opened as an image."
            ) from error
    if hasattr(item, "convert"):
        return item.convert(colours)
    if isinstance(item, np.ndarray | Tensor) and item.ndim in (2, 3):
        return item
    raise InputTypeError(
        f"{type(base).__name__} reads images: expected an image, its path or a dict of tensors, got {_described(item)}."
    )


def _sounds(base: PreTrainedModel, given: Any, processor: Any) -> dict[str, Any]:
    name = base.main_input_name
    if (
        isinstance(given, Tensor)
        and given.is_floating_point()
        and given.dim() >= (2 if name == "input_values" else 3)
    ):
        return {name: given}
    several = isinstance(given, list | tuple) and not (given and isinstance(given[0], int | float))
    waves = [_waveform(base, item) for item in (given if several else [given])]
    if not waves or len({len(samples) for samples, _ in waves}) > 1:
        raise InputError(
            "Waveforms of different lengths cannot be explained together: explain one at a time."
        )
    processor = _need_processor(base, processor, "sound")
    rate = getattr(processor, "sampling_rate", None)
    wrong = next(
        (own for _, own in waves if own is not None and rate is not None and own != rate), None
    )
    if wrong is not None:
        raise InputError(
            f"The sound has {wrong} samples per second, the model reads {rate}: resample it first."
        )
    return dict(
        processor([samples for samples, _ in waves], sampling_rate=rate, return_tensors="pt")
    )


def _waveform(base: PreTrainedModel, item: Any) -> tuple[Any, int | None]:
    """(samples, samples per second if known) of an array, a `{"array": ..., "sampling_rate": ...}`, or a WAV file."""
    rate = None
    if isinstance(item, Mapping):
        item, rate = item.get("array"), int(item["sampling_rate"])
    if isinstance(item, str | Path):
        item, rate = read_wav(item)
    try:
        samples = np.asarray(
            item.detach().cpu() if isinstance(item, Tensor) else item, dtype=np.float32
        )
    except (TypeError, ValueError):
        samples = np.zeros((0, 0), dtype=np.float32)
    if samples.ndim != 1 or not len(samples):
        raise InputTypeError(
            f"{type(base).__name__} reads sound: expected a waveform, a WAV file or a dict, got {_described(item)}."
        )
    return samples, rate


def read_wav(path: str | Path) -> tuple[Any, int]:
    """(samples between -1 and 1, samples per second) of a PCM WAV file; channels are averaged."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (OSError, wave.Error, EOFError) as error:
        raise InputError(f"{str(path)!r} cannot be read as a WAV file: {error}.") from error
    if width not in (1, 2, 4):
        raise InputError(f"{str(path)!r} has {8 * width} bits per sample: 8, 16 and 32 are read.")
    array: Any = np.frombuffer(frames, dtype={1: "<u1", 2: "<i2", 4: "<i4"}[width]).astype(
        np.float32
    )
    array = (array - 128) / 128 if width == 1 else array / 2.0 ** (8 * width - 1)
    return array.reshape(-1, channels).mean(axis=1), rate


# ---- words of the vocabulary
# ------------------------------------------------------------------------------------------
def pieces_of(tokenizer: Tokenizer, word: str) -> list[str]:
    """What the tokenizer makes of a word, for a sentence about it."""
    return list(tokenizer.tokenize(word))


def vocabulary_id(tokenizer: Tokenizer, word: str) -> int | None:
    """The number of a word inside a sentence, where it is one piece: with the mark of a word's
    start if the tokenizer has one.
    """
    found = []
    for text in (word, f" {word}"):
        ids = encode_one(tokenizer, text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            found.append(int(ids[0]))
    marked = [i for i in found if str(tokenizer.convert_ids_to_tokens(i)).startswith(WORD_MARKS)]
    if found and word[:1].isalnum() and _marks_words(tokenizer):
        return marked[0] if marked else None
    return found[0] if found else tokenizer.get_vocab().get(word)


def _marks_words(tokenizer: Tokenizer) -> bool:
    ids = encode_one(tokenizer, " a", add_special_tokens=False)["input_ids"]
    return any(str(piece).startswith(WORD_MARKS) for piece in tokenizer.convert_ids_to_tokens(ids))
