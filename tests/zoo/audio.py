"""Speech and sound encoders."""

from __future__ import annotations

from . import inputs as I
from .rows import audio, encoder, plain
from .spec import Spec

AUDIO: dict[str, Spec] = {
    **plain(
        audio, "data2vec-audio hubert sew sew-d unispeech unispeech-sat wav2vec2 wavlm wav2vec2-conformer"
    ),
    "wav2vec2-stable": audio("wav2vec2", do_stable_layer_norm=True, feat_extract_norm="layer"),
    "whisper": audio("whisper", inputs=I.frames(24), part=encoder),
}
