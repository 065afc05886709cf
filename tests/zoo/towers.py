"""The text and image towers of models that read both."""

from __future__ import annotations

from . import inputs as I
from .rows import plain, text, vision
from .spec import Spec

TOWERS: dict[str, Spec] = {
    **plain(
        text, "chinese_clip_text_model=ChineseCLIPTextModel clipseg_text_model=CLIPSegTextModel"
    ),
    **plain(text, "clap_text_model=ClapTextModel align_text_model=AlignTextModel"),
    **plain(
        text,
        "altclip_text_model=AltCLIPTextModel bridgetower_text_model=bridgetower.BridgeTowerTextModel",
    ),
    **plain(text, "flava_text_model=FlavaTextModel groupvit_text_model=GroupViTTextModel"),
    **plain(text, "metaclip_2_text_model=MetaClip2TextModel owlvit_text_model=OwlViTTextModel"),
    **plain(text, "owlv2_text_model=Owlv2TextModel siglip_text_model=SiglipTextModel"),
    **plain(text, "siglip2_text_model=Siglip2TextModel xclip_text_model=XCLIPTextModel"),
    "aimv2_text_model": text(
        "aimv2_text_model", cls="Aimv2TextModel", since="5", inputs=I.tokens, padded=False
    ),
    "videoprism_text_model": text(
        "videoprism_text_model", cls="VideoPrismTextModel", inputs=I.tokens, padded=False
    ),
    "blip_text_model": text(
        "blip_text_model", cls="BlipTextModel", encoder_hidden_size=32, is_decoder=False
    ),
    **plain(vision, "blip_vision_model=BlipVisionModel blip_2_vision_model=Blip2VisionModel"),
    **plain(
        vision, "clipseg_vision_model=CLIPSegVisionModel altclip_vision_model=AltCLIPVisionModel"
    ),
    **plain(vision, "flava_image_model=FlavaImageModel git_vision_model=GitVisionModel"),
    **plain(vision, "instructblip_vision_model=InstructBlipVisionModel"),
    **plain(vision, "instructblipvideo_vision_model=InstructBlipVideoVisionModel"),
    **plain(
        vision, "metaclip_2_vision_model=MetaClip2VisionModel owlvit_vision_model=OwlViTVisionModel"
    ),
    **plain(vision, "owlv2_vision_model=Owlv2VisionModel janus_vision_model=JanusVisionModel"),
    **plain(
        vision,
        "kosmos_2_vision_model=kosmos2.Kosmos2VisionModel idefics2_vision=idefics2.Idefics2VisionTransformer",
    ),
    **plain(
        vision, "idefics3_vision=Idefics3VisionTransformer smolvlm_vision=SmolVLMVisionTransformer"
    ),
    **plain(vision, "qianfan_ocr_vision"),
    **plain(
        vision, "phi4_multimodal_vision=Phi4MultimodalVisionModel clip_vision_model=CLIPVisionModel"
    ),
    **plain(vision, "siglip_vision_model=SiglipVisionModel mlcd_vision_model=MLCDVisionModel"),
    **plain(
        vision, "aimv2_vision_model chinese_clip_vision_model internvl_vision tipsv2_vision_model"
    ),
    "siglip2_vision_model": vision("siglip2_vision_model", inputs=I.flat_patches, num_patches=16),
    "pix2struct_vision_model": vision(
        "pix2struct_vision_model",
        cls="Pix2StructVisionModel",
        inputs=I.pix2struct,
        patch_embed_hidden_size=48,
    ),
    "llama4_vision_model": vision(
        "llama4_vision_model",
        cls="Llama4VisionModel",
        pixel_shuffle_ratio=1.0,
        projector_input_dim=32,
        projector_output_dim=32,
        vision_output_dim=32,
        intermediate_size=32,
    ),
}
