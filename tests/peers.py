"""Copy weights of Hugging Face's models to our names, so that both compute with the same numbers."""

import re

import torch
from torch import Tensor, nn

# Applied in order to each name; tensors that are packed in our models are joined afterwards.
RENAMES = [
    (r"^(vit|deit|dinov2_with_registers)\.", ""),
    # CLIP's image tower
    (r"^embeddings\.class_embedding$", "class_token"),
    (r"^embeddings\.patch_embedding\.", "patches.projection."),
    (r"^embeddings\.position_embedding\.weight$", "positions.0.table"),
    (r"^pre_layrnorm\.", "pre_norm."),
    (r"^post_layernorm\.", "norm."),
    (r"^encoder\.layers\.", "blocks."),
    (r"\.self_attn\.out_proj\.", ".attention.out."),
    (r"\.self_attn\.", ".attention."),
    (r"\.layer_norm1\.", ".norm_attention."),
    (r"\.layer_norm2\.", ".norm_mlp."),
    (r"^embeddings\.cls_token$", "class_token"),
    (r"^embeddings\.distillation_token$", "distillation_token"),
    (r"^embeddings\.register_tokens$", "registers"),
    (r"^embeddings\.position_embeddings$", "positions.0.table"),
    (r"^embeddings\.patch_embeddings\.", "patches."),
    (r"^(encoder\.layer|layers)\.", "blocks."),
    (r"\.o_proj\.", ".out."),
    (r"\.(layernorm_before|norm1)\.", ".norm_attention."),
    (r"\.(layernorm_after|norm2)\.", ".norm_mlp."),
    (r"\.layer_scale1\.lambda1$", ".branch_attention.scale"),
    (r"\.layer_scale2\.lambda1$", ".branch_mlp.scale"),
    (r"\.mlp\.fc1\.", ".mlp.hidden."),
    (r"\.mlp\.(fc2|down_proj)\.", ".mlp.out."),
    (r"^layernorm\.", "norm."),
    (r"^(classifier|cls_classifier)\.", "head."),
    (r"^distillation_classifier\.", "head_distillation."),
]
PACKS = {
    "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "mlp.gate_hidden": ("mlp.gate_proj", "mlp.up_proj"),
}


def copy_peer_weights(peer: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a Hugging Face model with our tensor names."""
    state = {}
    for name, value in peer.state_dict().items():
        for pattern, ours in RENAMES:
            name = re.sub(pattern, ours, name)
        state[name] = value
    state.pop("embeddings.mask_token", None)  # DINOv2's, which takes no part in classification
    for name in ("class_token", "distillation_token", "registers", "positions.0.table"):
        if name in state:
            state[name] = state[name].reshape(-1, state[name].shape[-1])
    state["patches.projection.weight"] = state["patches.projection.weight"].flatten(1)
    for packed, parts in PACKS.items():
        for first in [name for name in state if parts[0] in name]:
            pieces = [state.pop(first.replace(parts[0], part)) for part in parts]
            state[first.replace(parts[0], packed)] = torch.cat(pieces)
    return state
