"""Causal language models: attention over the sequence, masked to the past."""

from __future__ import annotations

from .rows import decoder, plain
from .spec import Spec

DECODERS: dict[str, Spec] = {
    **plain(
        decoder,
        "gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gptj codegen openai-gpt opt xglm biogpt bloom mpt",
    ),
    **plain(
        decoder, "llama mistral ministral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text vaultgemma phi phi3"
    ),
    **plain(
        decoder, "olmo olmo2 olmo3 stablelm starcoder2 cohere cohere2 granite glm glm4 nemotron persimmon"
    ),
    **plain(decoder, "smollm3 exaone4 helium arcee ernie4_5 seed_oss bitnet apertus hunyuan_v1_dense falcon"),
    **plain(
        decoder, "mixtral qwen2_moe qwen3_moe olmoe phimoe flex_olmo granitemoe granitemoeshared glm4_moe"
    ),
    "gpt_neo": decoder("gpt_neo", attention_types=[[["global", "local"], 1]]),
    "ctrl": decoder("ctrl", dff=48),
}
