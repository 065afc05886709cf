"""Image and video encoders whose attention sees all patches."""

from __future__ import annotations

from . import inputs as I
from .rows import plain, vision
from .spec import Spec

VISION: dict[str, Spec] = {
    **plain(
        vision,
        "aimv2_vision_model chinese_clip_vision_model deit dinov2 dinov2_with_registers dinov3_vit dpt",
    ),
    **plain(vision, "ijepa internvl_vision pixio tipsv2_vision_model vit vit_msn"),
    "beit": vision("beit", use_relative_position_bias=True, layer_scale_init_value=0.1),
    "data2vec-vision": vision("data2vec-vision", use_relative_position_bias=True, layer_scale_init_value=0.1),
    "clip_vision_model": vision("clip_vision_model", cls="CLIPVisionModel"),
    "siglip_vision_model": vision("siglip_vision_model", cls="SiglipVisionModel"),
    "mlcd_vision_model": vision("mlcd_vision_model", cls="MLCDVisionModel"),
    "vit_mae": vision("vit_mae", inputs=I.noisy, mask_ratio=0.0),
}
