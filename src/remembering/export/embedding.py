"""The embedding of a backbone in an exported graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remembering.backbones.backbone import Backbone
from remembering.backbones.preprocessing import LUMA


class Embedding(nn.Module):
    """Maps prepared images, uint8 (n, channels, size, size), to state 0.

    Embeddings are affine: a convolution, and terms that do not depend on the image (CLS token,
    registers, interpolated position embeddings), which are computed once. Images are in colour,
    also if the backbone reads grey images.

    Attributes:
        shape: (channels, size, size).
    """

    constant: Tensor
    luma: Tensor | None
    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone):
        super().__init__()
        spec, family = backbone.preprocessing, backbone.family
        self.cls_token, self.pre_norm = family.cls_token, backbone.pre_norm
        modules = backbone.embeddings.modules()
        (self.convolution,) = (module for module in modules if isinstance(module, nn.Conv2d))
        options = {"interpolate_pos_encoding": True} if family.interpolates else {}
        black = torch.zeros(1, spec.channels, spec.size, spec.size)
        self.register_buffer("constant", backbone.embeddings(black, **options))
        grey = spec.channels == 1
        self.shape = (len(LUMA) if grey else spec.channels, spec.size, spec.size)
        self.register_buffer("luma", torch.tensor(LUMA).view(-1, 1, 1) if grey else None)
        self.register_buffer("mean", 255 * torch.tensor(spec.mean).view(-1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(spec.std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.float()
        if self.luma is not None:
            pixels = (pixels * self.luma).sum(1, keepdim=True).round()
        pixels = (pixels - self.mean) / self.std
        weight, stride = self.convolution.weight, self.convolution.stride
        patches = F.conv2d(pixels, weight, stride=stride).flatten(2).mT
        first = self.constant.shape[1] - patches.shape[1]
        prefix = self.constant[:, :first].expand(patches.shape[0], -1, -1)
        tokens: Tensor = self.pre_norm(torch.cat([prefix, patches + self.constant[:, first:]], 1))
        return tokens if self.cls_token else torch.cat([tokens.mean(1, keepdim=True), tokens], 1)
