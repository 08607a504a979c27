"""Heads: the linear layers that map features to labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
        classes: Labels.
        weight: (outputs, features). A trained head has one row per class. The checkpoint's frozen
            classifier keeps all rows, and the loss runs over all of them, as in the paper's code.
        bias: (outputs,).
        columns: Output of each class.
        trained: Whether weight and bias belong to the adapter, and are trained and stored.
    """

    classes: tuple[Label, ...]
    weight: Tensor
    bias: Tensor
    columns: Tensor
    trained: bool = True

    @classmethod
    def linear(cls, classes: Sequence[Label], backbone: Backbone) -> Head:
        """Return an untrained head: all zeros, so that no class is preferred."""
        weight = torch.zeros(len(classes), backbone.dim, device=backbone.device)
        bias = torch.zeros(len(classes), device=backbone.device)
        return cls(tuple(classes), weight, bias, torch.arange(len(classes)))

    @classmethod
    def frozen(cls, classes: Sequence[Label], columns: Sequence[int], backbone: Backbone) -> Head:
        """Return the checkpoint's own classifier, with one of its outputs for each class."""
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
        """Return this head with additional rows for the classes that it lacks."""
        added = [label for label in classes if label not in self.classes]
        weight = torch.cat([self.weight, self.weight.new_zeros(len(added), self.weight.shape[1])])
        bias = torch.cat([self.bias, self.bias.new_zeros(len(added))])
        return Head((*self.classes, *added), weight, bias, torch.arange(len(weight)))

    def restricted(self, classes: Collection[Label]) -> Head:
        """Return this head without rows for other classes than these."""
        kept = [i for i, label in enumerate(self.classes) if label in classes]
        labels, columns = tuple(self.classes[i] for i in kept), self.columns[kept]
        if not self.trained:
            return replace(self, classes=labels, columns=columns)
        return Head(labels, self.weight[columns], self.bias[columns], torch.arange(len(kept)))

    def with_tensors(self, weight: Tensor, bias: Tensor) -> Head:
        """Return a head with the same classes and other weights."""
        return replace(self, weight=weight, bias=bias)

    def to(self, device: torch.device) -> Head:
        """Return this head on another device."""
        return replace(self, weight=self.weight.to(device), bias=self.bias.to(device))

    @property
    def parameters(self) -> int:
        """Number of stored parameters."""
        return self.weight.numel() + self.bias.numel() if self.trained else 0

    def features(self, backbone: Backbone, tokens: Tensor) -> Tensor:
        """Return the input of this head, from the last state."""
        return backbone.pool(tokens) if self.trained else backbone.classifier_input(tokens)

    def logits(self, backbone: Backbone, tokens: Tensor) -> Tensor:
        """Return all outputs (n, outputs) for the last state."""
        return F.linear(self.features(backbone, tokens), self.weight, self.bias)

    def targets(self, labels: Sequence[Label]) -> Tensor:
        """Return the output of each label."""
        column = dict(zip(self.classes, self.columns.tolist(), strict=True))
        return torch.tensor([column[label] for label in labels])


class StackedHeads:
    """All heads as one matrix, for batches whose samples use different adapters."""

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
        """Return softmax probabilities (n, classes), over the classes of each sample's adapter.

        Computed in float64: the rounding of a product depends on its width, and an answer must not
        change when an unrelated task is learned or forgotten.
        """
        features = self._any.features(backbone, tokens).double()
        logits = F.linear(features, self._weight, self._bias)
        foreign = self._owner != adapters.to(logits.device)[:, None]
        own = logits.masked_fill(foreign, float("-inf")).softmax(1)
        summed = own.new_zeros(len(own), len(self.classes)).index_add_(1, self._class, own)
        return summed.float()
