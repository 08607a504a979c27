"""Supported model families of the transformers library."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
        layer_scale: Whether layers scale their residual branches (DINO).
        interpolates: Whether the embeddings have the argument `interpolate_pos_encoding`.
        rope: Name of the module of rotary position embeddings, if there is one.
        cls_token: Whether the first token is a CLS token. If not, all tokens are patches.
        pooling: Name of the module that pools the patches, for models without a CLS token. If
            None, their mean is used.
        vision_config: Whether config.json may describe a larger model, with the vision tower under
            this key.
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
    interpolates: bool = True
    rope: str | None = None
    cls_token: bool = True
    pooling: str | None = None
    vision_config: bool = False

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
        interpolates=False,  # always interpolated
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
    vision_config=True,
)
_SIGLIP = replace(
    _CLIP,
    config_class="SiglipVisionConfig",
    model_class="SiglipVisionModel",
    pre_norm=None,
    cls_token=False,
    pooling="head",
)
_METACLIP = replace(_CLIP, config_class="MetaClip2VisionConfig", model_class="MetaClip2VisionModel")
_DINOV3 = replace(
    _dino("DINOv3ViT"),
    classifiers=(),
    layers="model.layer",
    final_norm="norm",
    rope="rope_embeddings",
)
FAMILIES = {
    "vit": Family("ViTConfig", "ViTModel", ("ViTForImageClassification",), "layers"),
    "vit_msn": Family("ViTMSNConfig", "ViTMSNModel", (), "layers"),
    "deit": Family(
        "DeiTConfig",
        "DeiTModel",
        ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
        "layers",
    ),
    "dinov2": _dino("Dinov2"),
    "dinov2_with_registers": _dino("Dinov2WithRegisters"),
    "dinov3_vit": _DINOV3,
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "metaclip_2": _METACLIP,
    "metaclip_2_vision_model": _METACLIP,
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "ijepa": Family("IJepaConfig", "IJepaModel", (), "layers", cls_token=False),
}
"""Families by the `model_type` of config.json. No other model is loaded."""
REJECTED = {
    "beit": "its layers add relative position biases to the attention",
    "data2vec-vision": "its layers add relative position biases to the attention",
    "siglip2": "it takes patches of images of any shape; its versions for one image size have the "
    "model type siglip and are supported",
    "swin": "its layers attend within windows that change from layer to layer",
    "swinv2": "its layers attend within windows that change from layer to layer",
    "vit_mae": "its encoder drops random patches",
}
"""Why some well-known vision Transformers are not supported."""

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
    "key_bias",
    "label2id",
    "layer_norm_eps",
    "layerscale_value",
    "mlp_bias",
    "mlp_ratio",
    "num_attention_heads",
    "num_channels",
    "num_hidden_layers",
    "num_labels",
    "num_register_tokens",
    "patch_size",
    "pooler_act",
    "pooler_output_size",
    "proj_bias",
    "projection_dim",
    "qkv_bias",
    "query_bias",
    "rope_theta",
    "torch_dtype",
    "use_gated_mlp",
    "use_mask_token",
    "use_swiglu_ffn",
    "value_bias",
    "vision_use_head",
}
"""Keys of config.json that are used. All others are ignored, because some of them select code to
run: remote classes, attention kernels from the hub, quantisation libraries."""
