"""Speech and sound encoders."""

from __future__ import annotations

from . import inputs as I
from .rows import audio, encoder, plain
from .spec import Spec

_CONFORMER = {
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 48,
    "feature_projection_input_dim": 16,
    "conv_depthwise_kernel_size": 3,
    "add_adapter": False,
}

AUDIO: dict[str, Spec] = {
    **plain(audio, "data2vec-audio hubert sew sew-d unispeech unispeech-sat wav2vec2 wavlm"),
    "hubert-stable": audio("hubert", do_stable_layer_norm=True, feat_extract_norm="layer"),
    "unispeech-stable": audio("unispeech", do_stable_layer_norm=True, feat_extract_norm="layer"),
    "unispeech-sat-stable": audio(
        "unispeech-sat", do_stable_layer_norm=True, feat_extract_norm="layer"
    ),
    "wav2vec2-stable": audio("wav2vec2", do_stable_layer_norm=True, feat_extract_norm="layer"),
    "wavlm-stable": audio("wavlm", do_stable_layer_norm=True, feat_extract_norm="layer"),
    "wav2vec2-conformer": audio("wav2vec2-conformer", conv_depthwise_kernel_size=3),
    "wav2vec2-conformer-rotary": audio(
        "wav2vec2-conformer", conv_depthwise_kernel_size=3, position_embeddings_type="rotary"
    ),
    "wav2vec2-bert": audio(
        "wav2vec2-bert",
        inputs=I.frames(12, bins_first=False),
        feature_projection_input_dim=16,
        conv_depthwise_kernel_size=3,
    ),
    "whisper": audio("whisper", inputs=I.frames(24), part=encoder),
    "speech_to_text": audio(
        "speech_to_text",
        inputs=I.frames(32, bins_first=False),
        part=encoder,
        input_feat_per_channel=16,
        conv_channels=16,
        max_source_positions=40,
    ),
    "audio-spectrogram-transformer": audio(
        "audio-spectrogram-transformer",
        inputs=I.frames(16, name="input_values", bins_first=False),
        max_length=16,
        frequency_stride=4,
        time_stride=4,
    ),
    "moonshine": audio(
        "moonshine",
        inputs=I.samples(6000),
        part=encoder,
        encoder_num_key_value_heads=4,
        decoder_num_key_value_heads=4,
    ),
    "moonshine_streaming_encoder": audio(
        "moonshine_streaming_encoder",
        cls="moonshine_streaming.MoonshineStreamingEncoder",
        inputs=I.samples(960),
        sliding_windows=[[16, 4], [16, 4]],
        num_key_value_heads=4,
    ),
    "parakeet_encoder": audio(
        "parakeet_encoder",
        inputs=I.spoken(24, 16),
        conv_kernel_size=3,
        subsampling_conv_channels=8,
        subsampling_factor=2,
    ),
    "lasr_encoder": audio(
        "lasr_encoder",
        inputs=I.spoken(48, 16, frames=48),
        conv_kernel_size=3,
        subsampling_conv_channels=8,
    ),
    "qwen2_audio_encoder": audio("qwen2_audio_encoder", inputs=I.frames(24)),
    "voxtral_encoder": audio("voxtral_encoder", inputs=I.frames(24)),
    "audioflamingo3_encoder": audio(
        "audioflamingo3_encoder", inputs=I.spoken(16, 24, mask="input_features_mask")
    ),
    "glmasr_encoder": audio("glmasr_encoder", inputs=I.frames(24)),
    "moss_transcribe_diarize_audio": audio("moss_transcribe_diarize_audio", inputs=I.frames(24)),
    "seamless_m4t-speech": audio(
        "seamless_m4t",
        cls="SeamlessM4TForSpeechToText",
        part=encoder,
        inputs=I.frames(12, bins_first=False),
        **_CONFORMER,
    ),
    "seamless_m4t_v2-speech": audio(
        "seamless_m4t_v2",
        cls="SeamlessM4Tv2ForSpeechToText",
        part=encoder,
        inputs=I.frames(12, bins_first=False),
        **_CONFORMER,
    ),
    "speecht5": audio(
        "speecht5", cls="SpeechT5ForSpeechToText", part=encoder, encoder_max_relative_position=8
    ),
}
