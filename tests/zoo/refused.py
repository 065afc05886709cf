"""Families without one softmax matrix over the whole sequence in every layer, and why."""

from __future__ import annotations

from . import inputs as I
from .rows import audio, decoder, seq2seq, text, vision
from .spec import Spec

_NO_SOFTMAX = "mixes tokens without a softmax over the sequence"
_LOCAL = "attends to a window or to blocks, not to the whole sequence"
_PYRAMID = "the sequence is shortened between or inside layers"
_CONVOLUTION = "convolutions only"
_HYBRID = "some layers are recurrent or convolutional"
_BESIDE = "convolutions mix tokens beside the attention, in the same branch"
_SPLIT = "attends along one axis at a time"

_SWIN = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "patch_size": 2}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_channels": 3}
_PVT = {
    "image_size": 32,
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [4, 2],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}
_SSM = {"conv_kernel": 4, "expand": 2, "state_size": 8}
_SAM = {
    "output_channels": 16,
    "mlp_dim": 48,
    "num_pos_feats": 8,
    "window_size": 2,
    "global_attn_indexes": [1],
}

REFUSED_SPECS: dict[str, tuple[Spec, str]] = {
    "fnet": (text("fnet", inputs=I.tokens), _NO_SOFTMAX),
    "reformer": (
        text(
            "reformer",
            attention_head_size=8,
            axial_pos_embds_dim=[16, 16],
            axial_pos_shape=[4, 16],
            feed_forward_size=48,
            attn_layers=["local", "lsh"],
            num_hashes=1,
            num_buckets=2,
            lsh_attn_chunk_length=4,
            local_attn_chunk_length=4,
            hash_seed=0,
            is_decoder=False,
        ),
        _LOCAL,
    ),
    "rwkv": (decoder("rwkv", inputs=I.tokens, attention_hidden_size=32), _NO_SOFTMAX),
    "mamba": (decoder("mamba", inputs=I.tokens, **_SSM), _NO_SOFTMAX),
    "falcon_mamba": (decoder("falcon_mamba", inputs=I.tokens, **_SSM), _NO_SOFTMAX),
    "mamba2": (
        decoder("mamba2", inputs=I.tokens, **_SSM, num_heads=8, head_dim=8, n_groups=2),
        _NO_SOFTMAX,
    ),
    "nystromformer": (
        text("nystromformer", inputs=I.long_tokens, num_landmarks=4, segment_means_seq_len=40),
        "approximate attention",
    ),
    "yoso": (text("yoso"), "approximate attention"),
    "mra": (text("mra"), "approximate attention"),
    "longformer": (text("longformer", attention_window=[4, 4]), _LOCAL),
    "led": (seq2seq("led", attention_window=[4, 4]), _LOCAL),
    "longt5": (text("longt5", cls="LongT5EncoderModel", local_radius=2), _LOCAL),
    "pegasus_x": (seq2seq("pegasus_x", num_global_tokens=2, block_size=4), _LOCAL),
    "big_bird-sparse": (
        text(
            "big_bird",
            inputs=I.long_tokens,
            attention_type="block_sparse",
            block_size=2,
            num_random_blocks=1,
        ),
        _LOCAL,
    ),
    "bigbird_pegasus-sparse": (
        seq2seq(
            "bigbird_pegasus",
            inputs=I.long_tokens,
            attention_type="block_sparse",
            block_size=2,
            num_random_blocks=1,
        ),
        _LOCAL,
    ),
    "deepseek_v4": (decoder("deepseek_v4"), "attends to compressed keys"),
    "canine": (
        text("canine", inputs=I.long_tokens, local_transformer_stride=4, num_hash_buckets=50),
        _LOCAL,
    ),
    "convbert": (text("convbert", conv_kernel_size=3), "half of the heads are convolutions"),
    "funnel": (
        text(
            "funnel",
            cls="FunnelModel",
            block_sizes=[1, 1],
            block_repeats=[1, 1],
            num_decoder_layers=1,
            d_head=8,
        ),
        _PYRAMID,
    ),
    "perceiver": (
        text(
            "perceiver",
            inputs=I.perceiver,
            num_latents=4,
            d_latents=32,
            d_model=32,
            num_self_attends_per_block=1,
            num_cross_attention_heads=4,
            num_self_attention_heads=4,
        ),
        "attends over latents, not over the inputs",
    ),
    "lxmert": (
        text("lxmert", inputs=I.lxmert, l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=16),
        "two sequences and attention between them",
    ),
    "swin": (vision("swin", **_SWIN), _LOCAL),
    "swinv2": (vision("swinv2", **_SWIN), _LOCAL),
    "maskformer-swin": (vision("maskformer-swin", **_SWIN), _LOCAL),
    "donut-swin": (vision("donut-swin", **_SWIN), _LOCAL),
    "vitdet": (vision("vitdet", window_block_indices=[0], window_size=2), _LOCAL),
    "sam_vision_model": (vision("sam_vision_model", cls="SamVisionModel", **_SAM), _LOCAL),
    "sam_hq_vision_model": (vision("sam_hq_vision_model", cls="SamHQVisionModel", **_SAM), _LOCAL),
    "timesformer": (vision("timesformer", inputs=I.video(2), num_frames=2), _SPLIT),
    "segformer": (vision("segformer", **_PVT), _PYRAMID),
    "glpn": (vision("glpn", **_PVT), _PYRAMID),
    "pvt": (
        vision(
            "pvt",
            **{k: v for k, v in _PVT.items() if k != "sr_ratios"},
            sequence_reduction_ratios=[2, 1],
        ),
        _PYRAMID,
    ),
    "pvt_v2": (
        vision("pvt_v2", **{k: v for k, v in _PVT.items() if k != "decoder_hidden_size"}),
        _PYRAMID,
    ),
    "levit": (
        vision(
            "levit",
            image_size=32,
            hidden_sizes=[16, 16, 16],
            num_attention_heads=[2, 2, 2],
            depths=[1, 1, 1],
            key_dim=[4, 4, 4],
            patch_size=16,
            kernel_size=3,
            stride=2,
        ),
        _PYRAMID,
    ),
    "cvt": (
        vision("cvt", image_size=32, embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3]),
        _PYRAMID,
    ),
    "mobilevit": (
        vision(
            "mobilevit",
            image_size=64,
            patch_size=2,
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
        ),
        _PYRAMID,
    ),
    "hiera": (
        vision(
            "hiera",
            image_size=[32, 32],
            embed_dim=16,
            depths=[1, 1],
            num_heads=[1, 2],
            query_stride=[2, 2],
            num_query_pool=1,
            patch_size=[7, 7],
            patch_stride=[4, 4],
            patch_padding=[3, 3],
            masked_unit_size=[2, 2],
            masked_unit_attention=[True, False],
        ),
        _PYRAMID,
    ),
    "poolformer": (
        vision("poolformer", image_size=64, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]),
        _NO_SOFTMAX,
    ),
    "focalnet": (
        vision(
            "focalnet",
            image_size=32,
            embed_dim=8,
            depths=[1, 1],
            focal_levels=[1, 1],
            focal_windows=[3, 3],
        ),
        _NO_SOFTMAX,
    ),
    "convnext": (
        vision("convnext", image_size=32, num_stages=2, patch_size=4, **_STAGES),
        _CONVOLUTION,
    ),
    "convnextv2": (
        vision("convnextv2", image_size=32, num_stages=2, patch_size=4, **_STAGES),
        _CONVOLUTION,
    ),
    "resnet": (vision("resnet", embedding_size=8, **_STAGES), _CONVOLUTION),
    "videoprism_vision_model": (
        vision(
            "videoprism_vision_model",
            inputs=I.video(2, "pixel_values_videos"),
            num_frames=2,
            tubelet_size=[1, 4, 4],
            num_spatial_layers=1,
            num_temporal_layers=1,
        ),
        _SPLIT,
    ),
    "clap_audio_model": (
        audio(
            "clap_audio_model",
            cls="ClapAudioModel",
            inputs=I.clap,
            spec_size=16,
            num_mel_bins=16,
            patch_size=2,
            patch_stride=[2, 2],
            patch_embeds_hidden_size=16,
            depths=[1, 1],
            num_attention_heads=[2, 2],
            window_size=2,
            hidden_size=32,
            enable_fusion=False,
        ),
        _LOCAL,
    ),
    "recurrent_gemma": (
        decoder("recurrent_gemma", num_hidden_layers=3, lru_width=32, attention_window_size=16),
        _HYBRID,
    ),
    "inkling_text": (decoder("inkling_text"), _BESIDE),
    "fun_asr_nano_encoder": (
        audio(
            "fun_asr_nano_encoder",
            inputs=I.spoken(12, 32, frames=12, mask="input_features_mask"),
            num_stacked_frames=2,
            num_timestamp_prediction_layers=1,
            fsmn_kernel_size=3,
        ),
        _BESIDE,
    ),
    "lfm2": (decoder("lfm2", layer_types=["conv", "full_attention"]), _HYBRID),
    "minimax": (
        decoder("minimax", layer_types=["linear_attention", "full_attention"], block_size=4),
        _HYBRID,
    ),
    "olmo_hybrid": (
        decoder("olmo_hybrid", layer_types=["linear_attention", "full_attention"]),
        _HYBRID,
    ),
    "qwen3_next": (
        decoder("qwen3_next", layer_types=["linear_attention", "full_attention"]),
        _HYBRID,
    ),
    "jamba": (
        decoder(
            "jamba",
            attn_layer_period=2,
            attn_layer_offset=1,
            use_mamba_kernels=False,
            mamba_d_state=8,
            mamba_dt_rank=4,
        ),
        _HYBRID,
    ),
    "bamba": (
        decoder(
            "bamba",
            attn_layer_indices=[1],
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_d_state=8,
            mamba_n_groups=1,
        ),
        _HYBRID,
    ),
}
