"""Image and video encoders whose attention sees all patches."""

from __future__ import annotations

from . import inputs as I
from .rows import plain, vision
from .spec import Spec

VISION: dict[str, Spec] = {
    **plain(vision, "deit dinov2 dinov2_with_registers dpt ijepa pixio vit vit_msn sapiens2"),
    "dinov3_vit": vision("dinov3_vit", num_register_tokens=2),
    "beit": vision("beit", use_relative_position_bias=True, layer_scale_init_value=0.1),
    "data2vec-vision": vision(
        "data2vec-vision", use_relative_position_bias=True, layer_scale_init_value=0.1
    ),
    "vit_mae": vision("vit_mae", inputs=I.noisy, mask_ratio=0.0),
    "yolos": vision("yolos", image_size=[16, 16], num_detection_tokens=3),
    "videomae": vision("videomae", inputs=I.video(2), num_frames=2, tubelet_size=1, patch_size=8),
    "vivit": vision("vivit", inputs=I.video(2), num_frames=2, tubelet_size=[1, 8, 8]),
    "mgp-str": vision(
        "mgp-str", cls="MgpstrModel", image_size=[16, 16], mlp_ratio=2.0, max_token_length=5
    ),
    "vilt": vision("vilt", inputs=I.vilt),
    "radio": vision("radio", max_img_size=16),
    "imagegpt": vision("imagegpt", inputs=I.tokens),
}
