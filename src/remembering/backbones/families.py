"""Supported model families of the transformers library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Classes and module names of one model family.

    Attributes:
        config_class: Its configuration class in transformers.
        model_class: Its model class in transformers.
        classifiers: Its classes for image classification whose head can serve as frozen head.
        layers: Path from the model to its list of layers, as in PEFT.
        attention: Name of the attention module of a layer.
        output: Name of the output projection of an attention module.
        norms: Names of the two layer norms of a layer.
        final_norm: Name of the layer norm after the last layer.
        pre_norm: Name of the layer norm before the first layer, if there is one.
        layer_scale: Whether layers scale their residual branches (DINOv2).
    """

    config_class: str
    model_class: str
    classifiers: tuple[str, ...]
    layers: str
    attention: str = "attention"
    output: str = "o_proj"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    final_norm: str = "layernorm"
    pre_norm: str | None = None
    layer_scale: bool = False

    def projections(self, layer: int) -> tuple[str, str, str, str]:
        """Return the module names of Q, K, V and O of a layer, in the order adapters use."""
        prefix = f"{self.layers}.{layer}.{self.attention}"
        return f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj", f"{prefix}.{self.output}"


def _dino(name: str) -> Family:
    return Family(
        f"{name}Config",
        f"{name}Model",
        (f"{name}ForImageClassification",),
        "encoder.layer",
        norms=("norm1", "norm2"),
        layer_scale=True,
    )


_CLIP = Family(
    "CLIPVisionConfig",
    "CLIPVisionModel",
    (),  # the classifier of CLIP does not read the CLS token
    "encoder.layers",
    attention="self_attn",
    output="out_proj",
    norms=("layer_norm1", "layer_norm2"),
    final_norm="post_layernorm",
    pre_norm="pre_layrnorm",  # spelled so in transformers
)
FAMILIES = {
    "vit": Family("ViTConfig", "ViTModel", ("ViTForImageClassification",), "layers"),
    "deit": Family(
        "DeiTConfig",
        "DeiTModel",
        ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
        "layers",
    ),
    "dinov2": _dino("Dinov2"),
    "dinov2_with_registers": _dino("Dinov2WithRegisters"),
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
}
"""Families by the `model_type` of config.json. No other model is loaded."""

CONFIG_KEYS = {
    "attention_dropout",
    "attention_probs_dropout_prob",
    "drop_path_rate",
    "dtype",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "id2label",
    "image_size",
    "intermediate_size",
    "label2id",
    "layer_norm_eps",
    "layerscale_value",
    "mlp_ratio",
    "num_attention_heads",
    "num_channels",
    "num_hidden_layers",
    "num_labels",
    "num_register_tokens",
    "patch_size",
    "pooler_act",
    "pooler_output_size",
    "projection_dim",
    "qkv_bias",
    "torch_dtype",
    "use_mask_token",
    "use_swiglu_ffn",
}
"""Keys of config.json that are used. All others are ignored, because some of them select code to
run: remote classes, attention kernels from the hub, quantisation libraries."""
