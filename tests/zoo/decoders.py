"""Causal language models: attention over the sequence, masked to the past."""

from __future__ import annotations

from .rows import decoder, plain
from .spec import Spec

_MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
_EXPERTS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
_DEEPSEEK = {**_MLA, **_EXPERTS, "num_key_value_heads": 4}
_THREE_AXES = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [2, 1, 1],
    "partial_rotary_factor": 1.0,
}

DECODERS: dict[str, Spec] = {
    **plain(
        decoder,
        "gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gptj codegen openai-gpt opt xglm biogpt",
    ),
    **plain(
        decoder,
        "bloom mpt falcon llama mistral ministral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text",
    ),
    **plain(
        decoder,
        "vaultgemma phi phi3 olmo olmo2 olmo3 stablelm starcoder2 cohere cohere2 granite glm glm4",
    ),
    **plain(
        decoder,
        "nemotron persimmon smollm3 exaone4 helium arcee ernie4_5 seed_oss bitnet apertus jais2",
    ),
    **plain(
        decoder,
        "hunyuan_v1_dense hyperclovax diffllama cwm granite_swa modernbert-decoder molmo2_text",
    ),
    **plain(decoder, "nanochat moshi muse_glimmer_text hrm_text beam flint"),
    **plain(
        decoder,
        "mixtral qwen2_moe qwen3_moe olmoe phimoe flex_olmo granitemoe granitemoeshared glm4_moe",
    ),
    **plain(
        decoder,
        "granitemoe_swa afmoe aria_text cohere2_moe ernie4_5_moe exaone_moe gpt_oss hunyuan_v1_moe",
    ),
    **plain(
        decoder,
        "hy_v3 jetmoe kolibri1 laguna llama4_text mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text",
    ),
    **plain(decoder, "openai_privacy_filter solar_open"),
    **plain(decoder, "embedding_gemma2_text gemma4_unified_text"),
    **plain(decoder, "doge qwen3_vl_text qwen3_vl_moe_text", since="5"),
    "gpt_neo": decoder("gpt_neo", attention_types=[[["global", "local"], 1]]),
    "ctrl": decoder("ctrl", dff=48),
    "falcon-alibi": decoder(
        "falcon", alibi=True, new_decoder_architecture=False, parallel_attn=False, bias=True
    ),
    "deepseek_v2": decoder("deepseek_v2", **_DEEPSEEK),
    "deepseek_v3": decoder("deepseek_v3", **_DEEPSEEK),
    "glm4_moe_lite": decoder("glm4_moe_lite", **_DEEPSEEK),
    "youtu": decoder("youtu", **_MLA, num_key_value_heads=4),
    "minicpm3": decoder("minicpm3", **_MLA, num_key_value_heads=4),
    "mistral4": decoder("mistral4", **_DEEPSEEK),
    "mistral_large4_text": decoder("mistral_large4_text", **_DEEPSEEK),
    "axk1": decoder("axk1", **_DEEPSEEK),
    "dots1": decoder("dots1", **_EXPERTS),
    "longcat_flash": decoder(
        "longcat_flash",
        **_MLA,
        num_key_value_heads=4,
        expert_ffn_hidden_size=48,
        zero_expert_num=2,
        moe_topk=2,
    ),
    "qwen2_vl_text": decoder("qwen2_vl_text", rope_parameters=_THREE_AXES, since="5"),
    "qwen2_5_vl_text": decoder("qwen2_5_vl_text", rope_parameters=_THREE_AXES, since="5"),
    "glm4v_text": decoder("glm4v_text", rope_parameters=_THREE_AXES, since="5"),
    "glm4v_moe_text": decoder("glm4v_moe_text", rope_parameters=_THREE_AXES, since="5"),
    "glm_ocr_text": decoder("glm_ocr_text", rope_parameters=_THREE_AXES, since="5"),
    "glm_image_text": decoder("glm_image_text", rope_parameters=_THREE_AXES, since="5"),
    "emu3_text_model": decoder("emu3_text_model", cls="Emu3TextModel", since="5"),
    "dbrx": decoder(
        "dbrx",
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        ffn_config={"ffn_hidden_size": 48},
    ),
    "trocr": decoder("trocr", cls="TrOCRForCausalLM"),
    **plain(decoder, "kosmos_2_text_model=kosmos2.Kosmos2TextModel"),
    "paddleocr_vl_text": decoder(
        "paddleocr_vl_text", cls="paddleocr_vl.PaddleOCRTextModel", rope_parameters=_THREE_AXES
    ),
    **plain(decoder, "qwen3_omni_moe_text=qwen3_omni_moe.Qwen3OmniMoeThinkerTextModel", since="5"),
    **plain(decoder, "clvp_decoder=ClvpDecoder", since="5"),
    **plain(decoder, "open-llama"),
    "qwen2_5_omni_text": decoder(
        "qwen2_5_omni_text",
        cls="Qwen2_5OmniThinkerTextModel",
        rope_parameters=_THREE_AXES,
        since="5",
    ),
    "hunyuan_vl_text": decoder("hunyuan_vl_text", rope_parameters=_THREE_AXES, since="5"),
    "semantic": decoder(
        "semantic", cls="BarkSemanticModel", input_vocab_size=100, output_vocab_size=100
    ),
    "gemma4_text": decoder(
        "gemma4_text",
        layer_types=["sliding_attention", "full_attention"],
        vocab_size_per_layer_input=100,
        hidden_size_per_layer_input=8,
    ),
    "gemma3n_text": decoder(
        "gemma3n_text",
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=100,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 4,
        intermediate_size=[48] * 4,
    ),
}
