"""What classes an adapter knows: labels <-> columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.task import Label
from remembering.errors import RememberingError


@dataclass(frozen=True)
class Head:
    """A linear layer whose row `columns[i]` stands for `classes[i]`.

    Attributes:
        weight: (outputs, features). A trained head has one row per class; the checkpoint's frozen
            classifier keeps all its rows, and the loss runs over all, as in the paper's code.
        trained: whether weight and bias belong to the adapter (and are learned and stored).
    """

    classes: tuple[Label, ...]
    weight: Tensor
    bias: Tensor
    columns: Tensor
    trained: bool = True

    @classmethod
    def linear(cls, classes: Sequence[Label], backbone: Backbone) -> Head:
        """A head to be trained: zero, so that it prefers no class."""
        weight = torch.zeros(len(classes), backbone.dim, device=backbone.device)
        bias = torch.zeros(len(classes), device=backbone.device)
        return cls(tuple(classes), weight, bias, torch.arange(len(classes)))

    @classmethod
    def frozen(cls, classes: Sequence[Label], columns: Sequence[int], backbone: Backbone) -> Head:
        """The checkpoint's own classifier; `columns` says which of its outputs mean what."""
        classifier = backbone.require_classifier()
        if max(columns) >= classifier.out_features:
            raise RememberingError(
                f"the frozen head of backbone '{backbone.name}' has {classifier.out_features} "
                'outputs and all are taken; use head = "linear"'
            )
        return cls(
            tuple(classes), classifier.weight, classifier.bias, torch.tensor(columns), trained=False
        )

    def extended(self, classes: Sequence[Label]) -> Head:
        """This head with rows for the classes that it does not know yet."""
        added = [label for label in classes if label not in self.classes]
        weight = torch.cat([self.weight, self.weight.new_zeros(len(added), self.weight.shape[1])])
        bias = torch.cat([self.bias, self.bias.new_zeros(len(added))])
        return Head((*self.classes, *added), weight, bias, torch.arange(len(weight)))

    def with_tensors(self, weight: Tensor, bias: Tensor) -> Head:
        """The same classes with other weights."""
        return replace(self, weight=weight, bias=bias)

    def to(self, device: torch.device) -> Head:
        """Return this head on another device."""
        return replace(self, weight=self.weight.to(device), bias=self.bias.to(device))

    @property
    def parameters(self) -> int:
        """Number of stored parameters."""
        return self.weight.numel() + self.bias.numel() if self.trained else 0

    def features(self, backbone: Backbone, tokens: Tensor) -> Tensor:
        """What this head reads of the last state."""
        return backbone.pool(tokens) if self.trained else backbone.classifier_input(tokens)

    def logits(self, backbone: Backbone, tokens: Tensor) -> Tensor:
        """All outputs for the last state: (n, outputs)."""
        return F.linear(self.features(backbone, tokens), self.weight, self.bias)

    def targets(self, labels: Sequence[Label]) -> Tensor:
        """The output that each label stands for."""
        column = dict(zip(self.classes, self.columns.tolist(), strict=True))
        return torch.tensor([column[label] for label in labels])


class StackedHeads:
    """All heads at once: one product answers a batch whose samples use different adapters."""

    def __init__(self, heads: Mapping[int, Head]):
        self.classes: tuple[Label, ...] = tuple(
            dict.fromkeys(label for head in heads.values() for label in head.classes)
        )
        position = {label: i for i, label in enumerate(self.classes)}
        self._any = next(iter(heads.values()))
        device = self._any.weight.device
        rows = [(head.weight[head.columns], head.bias[head.columns]) for head in heads.values()]
        self._weight = torch.cat([weight for weight, _ in rows]).double()
        self._bias = torch.cat([bias for _, bias in rows]).double()
        owners = [n for n, head in heads.items() for _ in head.classes]
        classes = [position[label] for head in heads.values() for label in head.classes]
        self._owner = torch.tensor(owners, device=device)
        self._class = torch.tensor(classes, device=device)

    def probabilities(self, backbone: Backbone, tokens: Tensor, adapters: Tensor) -> Tensor:
        """Softmax over the classes of each sample's own adapter: (n, len(classes)), 0 elsewhere.

        In float64: how a product is rounded depends on its width, and an answer must not change
        when a task that has nothing to do with it is learned or forgotten.
        """
        features = self._any.features(backbone, tokens).double()
        logits = F.linear(features, self._weight, self._bias)
        foreign = self._owner != adapters.to(logits.device)[:, None]
        own = logits.masked_fill(foreign, float("-inf")).softmax(1)
        summed = own.new_zeros(len(own), len(self.classes)).index_add_(1, self._class, own)
        return summed.float()
