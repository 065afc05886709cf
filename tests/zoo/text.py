"""Text encoders, alone or as the encoder half of a sequence-to-sequence model."""

from __future__ import annotations

from . import inputs as I
from .rows import encoder, plain, seq2seq, text
from .spec import Spec

_GEMMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "pad_token_id": 1,
}
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}

TEXT: dict[str, Spec] = {
    **plain(
        text, "bert bert-generation camembert data2vec-text distilbert ernie eurobert gte ibert"
    ),
    **plain(
        text,
        "jina_embeddings_v3 megatron-bert mpnet nomic_bert roberta roberta-prelayernorm roformer",
    ),
    **plain(text, "splinter ultrabert visual_bert xlm-roberta xlm-roberta-xl tipsv2_text_model"),
    "albert": text("albert", embedding_size=16),
    "big_bird": text("big_bird", attention_type="original_full"),
    "bros": text("bros", inputs=I.bros, hidden_size=64),
    "clip_text_model": text("clip_text_model", cls="CLIPTextModel"),
    "deberta": text(
        "deberta", max_relative_positions=-1, position_biased_input=False, **_DISENTANGLED
    ),
    "deberta-v2": text(
        "deberta-v2",
        max_relative_positions=-1,
        position_buckets=4,
        position_biased_input=False,
        norm_rel_ebd="layer_norm",
        **_DISENTANGLED,
    ),
    "dpr": text("dpr", cls="DPRQuestionEncoder"),
    "electra": text("electra", embedding_size=16),
    "esm": text("esm", position_embedding_type="rotary", token_dropout=False, mask_token_id=3),
    "flaubert": text("flaubert", max_position_embeddings=64),
    "layoutlm": text("layoutlm", inputs=I.boxed, max_2d_position_embeddings=64),
    "mobilebert": text(
        "mobilebert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16
    ),
    "modernbert": text("modernbert", num_hidden_layers=4, local_attention=16),
    "rembert": text("rembert", input_embedding_size=16, output_embedding_size=32),
    "squeezebert": text("squeezebert"),
    "tapas": text("tapas", inputs=I.tapas, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4]),
    "xlm": text("xlm"),
    "xlnet": text("xlnet"),
    "esmc": text("esmc", num_key_value_heads=4),
    "layoutlmv3": text(
        "layoutlmv3",
        inputs=I.boxed,
        coordinate_size=4,
        shape_size=8,
        max_2d_position_embeddings=64,
        rel_pos_bins=8,
        rel_2d_pos_bins=8,
        max_rel_pos=16,
        max_rel_2d_pos=16,
        input_size=16,
    ),
    "lilt": text("lilt", inputs=I.boxed, hidden_size=48, max_2d_position_embeddings=64),
    "luke": text("luke", entity_vocab_size=20, entity_emb_size=16),
    "markuplm": text(
        "markuplm",
        max_depth=4,
        xpath_unit_hidden_size=8,
        tag_pad_id=10,
        subs_pad_id=10,
        max_xpath_tag_unit_embeddings=16,
        max_xpath_subs_unit_embeddings=16,
    ),
    "neomme": text("neomme", head_dim=16),
    "cpmant": text(
        "cpmant",
        inputs=I.tokens,
        padded=False,
        prompt_types=3,
        prompt_length=4,
        segment_types=4,
        dim_head=8,
        dim_ff=48,
    ),
    "roc_bert": text(
        "roc_bert",
        pronunciation_vocab_size=50,
        shape_vocab_size=50,
        pronunciation_embed_dim=8,
        shape_embed_dim=8,
    ),
    "xmod": text("xmod", default_language="en_XX", languages=["en_XX", "de_DE"]),
    "udop": text("udop", cls="UdopEncoderModel", inputs=I.udop),
    "switch_transformers": text(
        "switch_transformers", cls="SwitchTransformersEncoderModel", expert_capacity=64
    ),
    "t5gemma": text(
        "t5gemma",
        cls="T5GemmaEncoderModel",
        encoder=_GEMMA,
        decoder=_GEMMA,
        is_encoder_decoder=False,
    ),
    **plain(text, "ernie_m"),
    "t5": text("t5", cls="T5EncoderModel"),
    "mt5": text("mt5", cls="MT5EncoderModel"),
    "umt5": text("umt5", cls="UMT5EncoderModel"),
    **plain(
        seq2seq,
        "bart mbart mvp plbart blenderbot blenderbot-small m2m_100 marian pegasus prophetnet",
    ),
    "nllb-moe": seq2seq("nllb-moe", expert_capacity=64),
    "seamless_m4t": text("seamless_m4t", cls="SeamlessM4TForTextToText", part=encoder),
    "seamless_m4t_v2": text("seamless_m4t_v2", cls="SeamlessM4Tv2ForTextToText", part=encoder),
    "bigbird_pegasus": seq2seq("bigbird_pegasus", attention_type="original_full"),
}
