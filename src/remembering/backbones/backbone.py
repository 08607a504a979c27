"""A frozen pretrained Transformer that can be run from any layer to any other.

Weights, embeddings and MLPs are those of transformers. The attention layers are run by `Layer`,
with Q, K and V in one product, because that is where adapters act.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remembering.backbones.families import Family
from remembering.backbones.layer import ActiveAdapters, Layer
from remembering.backbones.loading import BUNDLED, MAX_SIDE, Checkpoint, load_model
from remembering.backbones.preprocessing import Preprocessing
from remembering.data.images import Images
from remembering.errors import InvalidInputError
from remembering.runtime.device import usable_device
from remembering.runtime.distributed import current

__all__ = ["BUNDLED", "Backbone"]


class Backbone(nn.Module):
    """A frozen Vision Transformer.

    State i is the input of layer i: state 0 is the embedding output, state `depth` the output of
    the last layer. `run(tokens, i, j)` maps state i to state j. The first token of a state is the
    CLS token. Models without one (SigLIP, I-JEPA) have the mean of their patches in its place.

    Attributes:
        name: "bundled", a folder, or a name on the model hub.
        revision: Commit of the checkpoint on the model hub. None for local folders.
        family: The model family.
        preprocessing: The preprocessing of the checkpoint.
        dim: Hidden size.
        classifier: The checkpoint's own classifier, if it has one.

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
        revision: str | None = None,
    ):
        super().__init__()
        config = model.config
        self.name = name
        self.revision = revision
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
        self.pooling = getattr(model, family.pooling, None) if family.pooling else None
        self.classifier = classifier
        self.rope: Tensor | None
        self.register_buffer("rope", None)
        if family.rope:
            size = preprocessing.size
            angles = getattr(model, family.rope)(torch.zeros(1, 1, size, size))
            self.rope = torch.stack(angles)
        self.requires_grad_(False).eval()

    @classmethod
    def load(
        cls,
        name: str | Path = BUNDLED,
        image_size: int | None = None,
        device: str | torch.device | None = None,
        *,
        revision: str | None = None,
    ) -> Backbone:
        """Load a Vision Transformer of one of the `FAMILIES`, frozen.

        Only configuration and safetensors files are read; code and pickles never.

        Args:
            name: "bundled", a local folder in hub layout, or a name on the model hub.
            image_size: Side of the input in pixels; position embeddings are interpolated. By
                default that of the checkpoint's preprocessing.
            device: Device to run on. By default a GPU if there is one.
            revision: Branch, tag or commit on the model hub. By default its main branch.

        Raises:
            InvalidFileError: If there is no such checkpoint, or it is damaged or not supported.
            InvalidInputError: If the image size does not fit, a local folder has a revision, or the
                device cannot be used.
            DownloadError: If the model hub cannot be reached.
        """
        where = current().device if device is None else usable_device(device)
        checkpoint = Checkpoint.find(name, revision)
        model, family, classifier = load_model(checkpoint)
        config = model.config
        file = checkpoint.preprocessor_config()
        preprocessing = Preprocessing.from_config(file, config.image_size, config.num_channels)
        size = config.image_size if image_size is None else image_size
        # DINOv2 was trained at 518 px, but is used at 224 px.
        own = preprocessing.size
        if image_size is None and own in range(0, size + 1, config.patch_size):
            size = int(own)
        if not config.patch_size <= size <= MAX_SIDE or size % config.patch_size:
            raise InvalidInputError(
                f"image size {size} does not fit backbone '{name}': "
                f"use a multiple of its patch size {config.patch_size}, at most {MAX_SIDE}"
            )
        preprocessing = preprocessing.resized(size)
        backbone = cls(model, family, str(name), preprocessing, classifier, checkpoint.revision)
        return backbone.to(where)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def image_size(self) -> int:
        """Side of the network's input, in pixels."""
        return self.preprocessing.size

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = self.final_norm.weight.device
        return device

    def prepare(self, images: Images) -> Tensor:
        """Resize and crop images as the checkpoint specifies.

        Images of different sizes are processed one at a time.

        Args:
            images: Images of any size, uint8 or float in 0..1.

        Returns:
            Images (n, channels, size, size) of the same type.
        """
        if isinstance(images, Tensor):
            return self.preprocessing.prepare(images.to(self.device))
        # By position: a loop variable would keep an image alive while the next one is decoded.
        return torch.cat([self.prepare(images[i][None]) for i in range(len(images))])

    def shrink(self, images: Images) -> Tensor:
        """Reduce images to squares that can be stored or rotated, and prepared later.

        Like `prepare`, but without cropping the margin that `prepare` would crop again.
        """
        if isinstance(images, Tensor):
            return self.preprocessing.shrink(images.to(self.device))
        return torch.cat([self.shrink(images[i][None]) for i in range(len(images))])

    def embed(self, images: Images) -> Tensor:
        """Map images of any size (uint8, or float in 0..1) to state 0, (n, tokens, dim)."""
        return self.embed_pixels(self.preprocessing.normalise(self.prepare(images)))

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Map prepared and normalised images to state 0."""
        options = {"interpolate_pos_encoding": True} if self.family.interpolates else {}
        tokens: Tensor = self.pre_norm(self.embeddings(pixels, **options))
        return tokens if self.family.cls_token else _with_mean(tokens)

    def run(
        self,
        tokens: Tensor,
        start: int = 0,
        stop: int | None = None,
        adapters: ActiveAdapters | None = None,
    ) -> Tensor:
        """Map tokens of state `start` to state `stop` (by default the last one)."""
        if not self.family.cls_token:
            tokens = tokens[:, 1:]
        for i in range(start, self.depth if stop is None else stop):
            tokens = self.layers[i](tokens, i, adapters, rope=self.rope)
        return tokens if self.family.cls_token else _with_mean(tokens)

    def finish(
        self, tokens: Tensor, start: int = 0, adapters: ActiveAdapters | None = None
    ) -> Tensor:
        """Map tokens of state `start` to the tokens of the last state that heads read.

        These are the CLS token alone, (n, 1, dim): the last layer does not compute the others,
        which saves about 7 % of the work of twelve layers. All tokens are returned if there is no
        CLS token, or if the checkpoint's classifier reads the patches as well (DINOv2).
        """
        reads_patches = self.classifier is not None and self.classifier.in_features != self.dim
        if reads_patches or not self.family.cls_token:
            return self.run(tokens, start, adapters=adapters)
        last = self.depth - 1
        cls: Tensor = self.layers[last](
            self.run(tokens, start, last, adapters), last, adapters, cls_only=True, rope=self.rope
        )
        return cls

    def states(
        self,
        tokens: Tensor,
        at: Sequence[int],
        adapters: ActiveAdapters | None = None,
        start: int = 0,
    ) -> Iterator[Tensor]:
        """Yield the states at these increasing depths, from the tokens of state `start`."""
        for stop in at:
            tokens = self.run(tokens, start, stop, adapters)
            start = stop
            yield tokens

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the input of heads from the last state, (n, dim).

        This is the normalised CLS token. Without a CLS token, it is what the checkpoint's own
        pooling makes of the normalised patches (SigLIP), or their mean (I-JEPA).
        """
        if self.family.cls_token:
            cls: Tensor = self.final_norm(tokens[:, 0])
            return cls
        patches: Tensor = self.final_norm(tokens[:, 1:])
        pooled: Tensor = patches.mean(1) if self.pooling is None else self.pooling(patches)
        return pooled

    def require_classifier(self) -> nn.Linear:
        """Return the checkpoint's own classifier.

        Raises:
            InvalidInputError: If it has none.
        """
        if self.classifier is None:
            raise InvalidInputError(
                f"backbone '{self.name}' has no classifier of its own; use head = \"linear\", or a "
                "checkpoint for image classification"
            )
        return self.classifier

    def classifier_input(self, tokens: Tensor) -> Tensor:
        """Return the input of the checkpoint's own classifier from tokens of the last state."""
        normed: Tensor = self.final_norm(tokens)
        if self.require_classifier().in_features == 2 * self.dim:  # DINOv2: CLS and mean patch
            return torch.cat([normed[:, 0], normed[:, 1:].mean(1)], dim=1)
        return normed[:, 0]

    def fingerprint(self) -> str:
        """Return the SHA-256 of weights and preprocessing, which identifies the backbone."""
        digest = hashlib.sha256(repr(self.preprocessing).encode())
        for key, value in sorted(self.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def _with_mean(patches: Tensor) -> Tensor:
    """Put the mean of the patches in the place of the CLS token."""
    return torch.cat([patches.mean(1, keepdim=True), patches], dim=1)
