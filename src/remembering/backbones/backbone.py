"""A frozen pretrained Transformer: load it, run it from layer i to layer j.

Weights, embeddings and MLPs are those of transformers; the attention layers are run here, with
Q, K and V in one product, because that is where adapters act.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remembering.backbones.preprocessing import Preprocessing
from remembering.errors import RememberingError
from remembering.runtime import hub
from remembering.runtime.distributed import current

if TYPE_CHECKING:
    from remembering.adapters.lora import ActiveAdapters

BUNDLED = "bundled"
_BUNDLED_FOLDER = Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class Family:
    """Where one family of transformers models keeps its parts."""

    model_class: str
    layers: str  # path from the model to its list of layers, as PEFT names it
    attention: str = "attention"
    output: str = "o_proj"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    final_norm: str = "layernorm"
    pre_norm: str | None = None
    layer_scale: bool = False

    def projections(self, layer: int) -> tuple[str, str, str, str]:
        """Module names of Q, K, V and O of a layer, in the order adapters keep them."""
        stem = f"{self.layers}.{layer}.{self.attention}"
        return f"{stem}.q_proj", f"{stem}.k_proj", f"{stem}.v_proj", f"{stem}.{self.output}"


_DINO = {"layers": "encoder.layer", "norms": ("norm1", "norm2"), "layer_scale": True}
_CLIP = Family(
    "CLIPVisionModel",
    "encoder.layers",
    attention="self_attn",
    output="out_proj",
    norms=("layer_norm1", "layer_norm2"),
    final_norm="post_layernorm",
    pre_norm="pre_layrnorm",  # transformers' own spelling
)
FAMILIES = {
    "vit": Family("ViTModel", "layers"),
    "deit": Family("DeiTModel", "layers"),
    "dinov2": Family("Dinov2Model", **_DINO),  # type: ignore[arg-type]
    "dinov2_with_registers": Family("Dinov2WithRegistersModel", **_DINO),  # type: ignore[arg-type]
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
}


class Layer(nn.Module):
    """One pre-norm Transformer layer; Q, K and V are one product.

    u = x + s₁ · O(attention(QKV(norm₁(x)))),  y = u + s₂ · MLP(norm₂(u)),
    with the layer scales s₁, s₂ of DINOv2 and 1 elsewhere.
    """

    def __init__(self, layer: Any, family: Family, num_heads: int):
        super().__init__()
        attention = getattr(layer, family.attention)
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.num_heads = num_heads
        self.norm1, self.norm2 = (getattr(layer, name) for name in family.norms)
        self.qkv_weight = nn.Parameter(torch.cat([p.weight for p in qkv]))
        self.qkv_bias = (
            nn.Parameter(torch.cat([p.bias for p in qkv])) if qkv[0].bias is not None else None
        )
        self.output = getattr(attention, family.output)
        self.mlp = layer.mlp
        self.scale1 = layer.layer_scale1 if family.layer_scale else nn.Identity()
        self.scale2 = layer.layer_scale2 if family.layer_scale else nn.Identity()

    def forward(
        self, x: Tensor, index: int, adapters: ActiveAdapters | None, cls_only: bool = False
    ) -> Tensor:
        """State `index` to the next, of which only the CLS token may be wanted."""
        n, tokens, dim = x.shape
        linear = partial(adapters.linear, index) if adapters else _linear
        weight, bias = self.qkv_weight, self.qkv_bias
        normed = self.norm1(x)
        if cls_only:
            x = x[:, :1]
            q_bias, kv_bias = (None, None) if bias is None else (bias[:dim], bias[dim:])
            q = linear(slice(0, 1), normed[:, :1], weight[:dim], q_bias)
            kv = linear(slice(1, 3), normed, weight[dim:], kv_bias)
            q = q.view(n, 1, self.num_heads, -1)
            k, v = kv.view(n, tokens, 2, self.num_heads, -1).unbind(2)
        else:
            qkv = linear(slice(0, 3), normed, weight, bias)
            q, k, v = qkv.view(n, tokens, 3, self.num_heads, -1).unbind(2)
        # Heads come before tokens last of all: so the gradients of q, k and v are copied once.
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        out = linear(slice(3, 4), mixed, self.output.weight, self.output.bias)
        x = x + self.scale1(out)
        result: Tensor = x + self.scale2(self.mlp(self.norm2(x)))
        return result


def _linear(which: slice, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Projections of Q, K, V and O that nothing adapts."""
    return F.linear(x, weight, bias)


class Backbone(nn.Module):
    """A frozen Vision Transformer that can be entered and left at any layer.

    State i is what enters layer i: state 0 is the embedding output, state `depth` the output of
    the last layer. `run(tokens, i, j)` goes from state i to state j.

    >>> backbone = Backbone.load("bundled")
    >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> tokens = backbone.run(backbone.embed(images), stop=3)
    >>> backbone.pool(backbone.run(tokens, start=3)).shape
    torch.Size([2, 96])
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        name: str,
        preprocessing: Preprocessing,
        classifier: nn.Linear | None = None,
    ):
        super().__init__()
        config = model.config
        self.name = name
        self.family = family
        self.preprocessing = preprocessing
        self.dim: int = config.hidden_size
        self.embeddings = model.embeddings
        self.pre_norm = getattr(model, family.pre_norm) if family.pre_norm else nn.Identity()
        self.layers = nn.ModuleList(
            Layer(layer, family, config.num_attention_heads)
            for layer in model.get_submodule(family.layers)
        )
        self.final_norm = getattr(model, family.final_norm)
        self.classifier = classifier
        self.requires_grad_(False).eval()

    @classmethod
    def load(
        cls,
        name: str | Path = BUNDLED,
        image_size: int | None = None,
        device: str | torch.device | None = None,
    ) -> Backbone:
        """Load a ViT, DeiT, DINOv2 or CLIP vision tower, frozen.

        Args:
            name: "bundled", a local folder in hub layout, or a name on the model hub.
            image_size: side of the input in pixels, if not the checkpoint's own; position
                embeddings are interpolated.
            device: where to run; a GPU if there is one.

        Raises:
            RememberingError: if there is no such checkpoint, or its kind is not supported.
        """
        source = _find(name)
        model, family, classifier = _load_model(source, str(name))
        config = model.config
        native = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        size = native if image_size is None else image_size
        if size < config.patch_size or size % config.patch_size:
            raise RememberingError(
                f"image size {size} does not fit backbone '{name}': "
                f"give a multiple of its patch size {config.patch_size}"
            )
        file = _preprocessor_file(source, str(name))
        try:
            preprocessing = Preprocessing.from_config(file, size, config.num_channels)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise RememberingError(
                f"{file} is no preprocessor configuration that can be used ({error})"
            ) from error
        backbone = cls(model, family, str(name), preprocessing, classifier)
        return backbone.to(device or current().device)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def image_size(self) -> int:
        """Side of the input in pixels."""
        return self.preprocessing.size

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.final_norm.weight.device
        return device

    def prepare(self, images: Tensor | list[Tensor]) -> Tensor:
        """Resize and crop images as the checkpoint's preprocessor says; uint8 stays uint8."""
        return self.preprocessing.prepare(self._moved(images))

    def shrink(self, images: Tensor | list[Tensor]) -> Tensor:
        """Squares that can be kept or turned, and embedded later; uint8 stays uint8."""
        return self.preprocessing.shrink(self._moved(images))

    def embed(self, images: Tensor | list[Tensor]) -> Tensor:
        """Images (uint8, or float in 0..1; any size) to state 0 (n, tokens, dim)."""
        return self.embed_pixels(self.preprocessing.normalise(self.prepare(images)))

    def _moved(self, images: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
        if isinstance(images, list):
            return [image.to(self.device) for image in images]
        return images.to(self.device)

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Images that are prepared and normalised, to state 0."""
        # DINOv2 interpolates its positions unasked, and has no such argument.
        options = {} if self.family.layer_scale else {"interpolate_pos_encoding": True}
        tokens: Tensor = self.pre_norm(self.embeddings(pixels, **options))
        return tokens

    def run(
        self,
        tokens: Tensor,
        start: int = 0,
        stop: int | None = None,
        adapters: ActiveAdapters | None = None,
    ) -> Tensor:
        """Tokens of state `start` to state `stop` (the last one unless given)."""
        for i in range(start, self.depth if stop is None else stop):
            tokens = self.layers[i](tokens, i, adapters)
        return tokens

    def finish(
        self, tokens: Tensor, start: int = 0, adapters: ActiveAdapters | None = None
    ) -> Tensor:
        """Tokens of state `start` to what heads read of the last state.

        That is the CLS token alone, (n, 1, dim), so the last layer computes no other: a fourteenth
        of the work of twelve layers. A classifier that reads patches, too (DINOv2), gets them all.
        """
        if self.classifier is not None and self.classifier.in_features != self.dim:
            return self.run(tokens, start, adapters=adapters)
        last = self.depth - 1
        cls: Tensor = self.layers[last](
            self.run(tokens, start, last, adapters), last, adapters, cls_only=True
        )
        return cls

    def states(
        self,
        tokens: Tensor,
        at: Sequence[int],
        adapters: ActiveAdapters | None = None,
        start: int = 0,
    ) -> Iterator[Tensor]:
        """Yield the states at these increasing depths, from state `start`, each layer run once."""
        for stop in at:
            tokens = self.run(tokens, start, stop, adapters)
            start = stop
            yield tokens

    def pool(self, tokens: Tensor) -> Tensor:
        """The last state's normalised CLS token: what heads read, (n, dim)."""
        pooled: Tensor = self.final_norm(tokens[:, 0])
        return pooled

    def require_classifier(self) -> nn.Linear:
        """The checkpoint's own classifier."""
        if self.classifier is None:
            raise RememberingError(
                f"backbone '{self.name}' has no classifier of its own; use head = \"linear\", or a "
                "checkpoint for image classification"
            )
        return self.classifier

    def classifier_input(self, tokens: Tensor) -> Tensor:
        """What the checkpoint's own classifier reads of the last state."""
        normed: Tensor = self.final_norm(tokens)
        if self.require_classifier().in_features == 2 * self.dim:  # DINOv2: CLS and mean patch
            return torch.cat([normed[:, 0], normed[:, 1:].mean(1)], dim=1)
        return normed[:, 0]

    def fingerprint(self) -> str:
        """SHA-256 of weights and preprocessing: a model learned on one is refused on another."""
        digest = hashlib.sha256(repr(self.preprocessing).encode())
        for key, value in sorted(self.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def _find(name: str | Path) -> str:
    """The local folder, or the hub name after making sure that it can be had."""
    if str(name) == BUNDLED:
        return str(_BUNDLED_FOLDER)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise RememberingError(
                f"{path} has no config.json; give a folder in hub layout (config.json, "
                "model.safetensors, preprocessor_config.json)"
            )
        return str(path)
    hub_name = str(name)
    if path.is_absolute() or hub_name.startswith((".", "~")) or hub_name.count("/") > 1:
        raise RememberingError(f"there is no backbone folder {path}")
    if _cached_file(hub_name, "config.json") is None and not hub.reachable():
        raise RememberingError(
            f"backbone '{name}' is neither a local folder nor in the hub's cache, and the hub "
            'cannot be reached; use backbone = "bundled", a local folder in hub layout or go online'
        )
    return hub_name


def _cached_file(source: str, filename: str) -> Path | None:
    """A file of a local folder or of the hub's cache, if it is there."""
    if os.path.isdir(source):  # noqa: PTH112 (a hub name is no path)
        path = Path(source) / filename
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, filename)
    return Path(cached) if isinstance(cached, str) else None


def _preprocessor_file(source: str, name: str) -> Path | None:
    """`preprocessor_config.json` of a folder or of the hub; None if the checkpoint has none."""
    filename = "preprocessor_config.json"
    found = _cached_file(source, filename)
    if found is not None or os.path.isdir(source):  # noqa: PTH112 (a hub name is no path)
        return found
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, filename))
    except LocalEntryNotFoundError as error:
        raise RememberingError(
            f"{filename} of backbone '{name}' is not in the hub's cache, and the hub cannot be "
            "reached; go online once, or give a local folder"
        ) from error
    except EntryNotFoundError:
        return None


def _load_model(source: str, name: str) -> tuple[Any, Family, nn.Linear | None]:
    import transformers

    quiet = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        if config.model_type not in FAMILIES:
            raise RememberingError(
                f"backbone '{name}' is a {config.model_type}; supported are {', '.join(FAMILIES)}"
            )
        family = FAMILIES[config.model_type]
        architecture = (config.architectures or [""])[0]
        # CLIP's classifier reads no CLS token; the others' can serve as the frozen head.
        with_classifier = "ForImageClassification" in architecture and family is not _CLIP
        loader = getattr(transformers, architecture if with_classifier else family.model_class)
        model, info = loader.from_pretrained(source, output_loading_info=True, use_safetensors=True)
    except RememberingError:
        raise
    except Exception as error:  # transformers, the hub and safetensors each raise their own
        reason = " ".join(str(error).split())
        raise RememberingError(f"backbone '{name}' cannot be loaded: {reason[:300]}") from error
    finally:
        transformers.logging.set_verbosity(quiet)
        transformers.logging.enable_progress_bar()
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    if missing:
        raise RememberingError(
            f"backbone '{name}' lacks {len(missing)} weights, such as {sorted(missing)[0]}; "
            "the checkpoint is damaged or of another architecture"
        )
    if not with_classifier:
        return model, family, None
    classifier = getattr(model, "classifier", None) or model.cls_classifier
    return model.base_model, family, classifier if isinstance(classifier, nn.Linear) else None
