"""Families of networks that are not read, recognised by the tensor names of other libraries."""

import pytest
import torch
import transformers

from vitrine.formats.families import FAMILIES, recognise_family
from vitrine.formats.registry import detect_format

# Models of transformers and the family that the error names; None: not in the table.
PEERS = {
    "CLIPModel": "CLIP in Hugging Face",
    "CLIPVisionModel": "CLIP in Hugging Face",
    "SiglipModel": "SigLIP",
    "SiglipVisionModel": "SigLIP",
    "Dinov2Model": "DINOv2",
    "Dinov2WithRegistersModel": "DINOv2",
    "DINOv3ViTModel": "DINOv3",
    "SwinModel": "Swin",
    "Swinv2Model": "Swin",
    "ConvNextModel": "ConvNeXt",
    "BeitModel": "BEiT",
    "HieraModel": "Hiera",
    "ResNetModel": "batch norm",
    "SamModel": "SAM",
    "BlipModel": "vision-language",
    "SegformerModel": None,
    "ViTModel": None,
    "DeiTModel": None,
    "BitModel": None,
}
# A few of the names in other files.
NAMES = {
    "Swin": ("patch_embed.proj.weight", "layers.0.blocks.0.attn.relative_position_bias_table"),
    "MViT": ("patch_embed.proj.weight", "stages.0.blocks.0.attn.rel_pos_h"),
    "Hiera": ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.2.proj.weight"),
    "ConvNeXt": ("stem.0.weight", "stages.0.blocks.0.conv_dw.weight", "stages.0.blocks.0.mlp.fc1.weight"),
    "PVT": ("patch_embed.proj.weight", "stages.0.blocks.0.attn.kv.weight"),
    "ViTamin": ("patch_embed.backbone.stem.conv1.weight", "blocks.0.attn.qkv.weight"),
    "NesT": ("patch_embed.proj.weight", "levels.0.transformer_encoder.0.norm1.weight"),
    "MLP-Mixer": ("stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight"),
    "NaFlexViT": ("embeds.proj.weight", "blocks.0.norm1.weight"),
    "CaiT": ("patch_embed.proj.weight", "blocks.0.attn.proj_l.weight", "blocks.0.gamma_1"),
    "ConViT": ("patch_embed.proj.weight", "blocks.0.attn.gating_param"),
    "XCiT": ("patch_embed.proj.0.1.running_mean", "blocks.0.attn.temperature"),
    "relative positions": ("patch_embed.proj.weight", "blocks.0.attn.rel_pos.mlp.fc1.weight"),
    "differential": ("patch_embed.proj.weight", "blocks.0.attn.lambda_q1"),
    "parallel": ("patch_embed.proj.weight", "blocks.0.in_proj.weight"),
    "EVA-02": ("patch_embed.proj.weight", "blocks.0.mlp.fc1_g.weight", "blocks.0.attn.norm.weight", "blocks.0.mlp.norm.weight"),
    "BEiT-3": ("patch_embed.proj.weight", "blocks.0.attn.norm.weight", "blocks.0.mlp.norm.weight"),
    "BEiT, EVA": ("patch_embed.proj.weight", "blocks.0.attn.q_bias"),
    "DINOv3": ("patch_embed.proj.weight", "rope_embed.periods"),
    "OpenAI": ("visual.conv1.weight", "visual.transformer.resblocks.0.ln_1.weight", "token_embedding.weight"),
    "PaliGemma": ("img/embedding/kernel", "llm/layers/attn/q_einsum/w"),
}


@pytest.mark.parametrize("name", PEERS)
def test_models_of_transformers(name: str) -> None:
    kind = getattr(transformers, name)
    with torch.device("meta"):
        names = list(kind(kind.config_class()).state_dict())
    family, expected = recognise_family(names), PEERS[name]
    assert (family is None) == (expected is None)
    if expected is not None:
        assert expected in str(family)
        with pytest.raises(ValueError, match=expected):
            detect_format(names, "the file")


@pytest.mark.parametrize("expected", NAMES)
def test_names_of_other_files(expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        detect_format(NAMES[expected], "the file")


def test_every_family_is_tested() -> None:
    words = [*NAMES, *filter(None, PEERS.values())]
    assert [family for family, _ in FAMILIES if not any(word in family for word in words)] == []
