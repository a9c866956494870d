"""Families of networks that no format holds, recognised by tell-tale tensor names so that the error can name them.

Some share a few names with a ViT in timm's or Hugging Face's layout and would otherwise end in advice that cannot help.
"""

import re
from collections.abc import Iterable

PATCHES = r"^patch_embed\.proj\.weight$"
STAGE = r"(layers|stages|features)\.\d+\.((blocks|layers)\.)?\d+\."
# A family has, for each of its patterns, a tensor whose name contains it. The first family in the table wins.
FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("XCiT", (r"^blocks\.\d+\.attn\.temperature$",)),
    ("Segment Anything (SAM)", (r"^blocks\.\d+\.attn\.rel_pos_h$|^shared_image_embedding\.",)),
    ("a network with batch norm, e.g. a ResNet", (r"running_mean$",)),
    ("Swin Transformer", (STAGE + r"(attn|attention)\.(self\.)?(relative_position_bias|logit_scale|cpb_mlp|meta_mlp)",)),
    ("MViT", (r"stages\.\d+\.blocks\.\d+\.attn\.(rel_pos_h|norm_q|pool_q)",)),
    ("Hiera", (r"patch_embed\.proj\.weight$", r"^(blocks\.\d+\.proj\.weight|pos_embed_win(dow)?)$")),
    ("Hiera in Hugging Face's layout", (r"encoder\.stages\.\d+\.layers\.\d+\.layernorm_before\.weight$",)),
    (
        "ConvNeXt or a similar network",
        (STAGE + r"(conv_dw\.|dwconv\.|depthwise_conv\.|layer_scale$)", r"(stem|downsample|embed|features)"),
    ),
    ("PVT", (STAGE + r"attn\.kv\.", r"patch_embed\.proj\.weight$")),
    ("ViTamin", (r"^patch_embed\.backbone\.stem\.conv1\.weight$",)),
    ("NesT", (r"^levels\.\d+\.transformer_encoder\.",)),
    ("MLP-Mixer", (r"mlp_tokens\.fc1|/token_mixing/",)),
    ("NaFlexViT", (r"^embeds\.proj\.weight$",)),
    ("CaiT", (r"^blocks\.\d+\.attn\.proj_l\.",)),
    ("ConViT", (r"attn\.gating_param$",)),
    ("EVA-02 or AIMv2 (SwiGLU in separate layers)", (PATCHES, r"^blocks\.\d+\.mlp\.(fc1_g|w1)\.")),
    ("BEiT-3", (r"^blocks\.\d+\.attn\.norm\.weight$", r"^blocks\.\d+\.mlp\.norm\.weight$")),
    ("timm's ViT with relative positions", (PATCHES, r"rel_pos\.(mlp|relative_position)")),
    ("a ViT with differential attention", (PATCHES, r"^blocks\.\d+\.(attn\.)?lambda_q1$")),
    ("a ViT with parallel blocks", (PATCHES, r"^blocks\.\d+\.(attns\.\d+|in_proj|attn_out_proj)\.")),
    ("DINOv3", (r"^(rope_embed\.periods|storage_tokens)$",)),
    ("BEiT, EVA or DINOv3", (PATCHES, r"^(blocks\.\d+\.(gamma_1|attn\.(q_bias|q_proj\.weight))$|rel_pos_bias\.)")),
    ("CLIP in OpenAI's or OpenCLIP's layout", (r"^visual\.(conv1|transformer|trunk|class_embedding)",)),
    ("CLIP in Hugging Face's layout", (r"embeddings\.patch_embedding\.weight$", r"pre_layrnorm\.weight$")),
    ("SigLIP in Hugging Face's layout", (r"embeddings\.patch_embedding\.weight$", r"head\.probe$")),
    ("DINOv3 in Hugging Face's layout", (r"embeddings\.patch_embeddings\.weight$", r"layer_scale1\.lambda1$")),
    ("DINOv2 in Hugging Face's layout", (r"patch_embeddings\.projection\.weight$", r"layer_scale1\.lambda1$")),
    ("BEiT in Hugging Face's layout", (r"patch_embeddings\.projection\.weight$", r"\.lambda_1$")),
    ("a vision-language model in Hugging Face's layout", (r"^(vision_model|vision_tower|model\.visual)\.",)),
    ("PaliGemma", (r"^llm/",)),
)


def recognise_family(names: Iterable[str]) -> str | None:
    """Return the family of networks that tensors of these names belong to; None if it is not in the table."""
    lines = "\n".join(names)
    for family, patterns in FAMILIES:
        if all(re.search(pattern, lines, re.MULTILINE) for pattern in patterns):
            return family
    return None
