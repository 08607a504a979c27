"""Mnemonics: exemplars whose pixels are optimized for training on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.icarl import ICaRL
from remembering.data.task import Task
from remembering.learning.training import TrainingSet, adapted, shuffled

EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


class Mnemonics(ICaRL):
    """Extend iCaRL by optimizing the exemplars E in a bilevel problem.

    In the inner problem, a copy of the model takes one step on the exemplars. In the outer problem,
    the exemplars are changed so that the model after this step fits the data D of their task:

        min_E ℓ(D; Θ'(E)),   Θ'(E) = Θ − η ∇_Θ ℓ(E; Θ).

    E is initialized with the herded images. Old exemplars are adjusted to the new model. Their
    original data are no longer available, so each half of a task's exemplars serves as D for the
    other half.

    Adaptation: Θ is the head alone, as in the authors' code; the adapter is fixed. The inner step
    then has a closed form, ∇_W ℓ(E) = (g(E) − Y)ᵀ φ(E) / |E| with g the sigmoid of the logits and
    φ the features. The gradient of the pixels therefore needs no second derivative of a
    Transformer, and φ(D) is computed once. The model is iCaRL's, one of four that the paper
    combines with mnemonics. After training, pixels are rounded to 8 bits and take the same space
    as ordinary exemplars.

    Defaults: `memory` as for iCaRL. The paper trains exemplars for 50 epochs; `epochs` is 10 here
    because they dominate the run time. `eta` (η) and `lr`, the learning rate of Adam for pixels in
    0..1, were tuned on held-out training images of scikit-learn's digits.
    """

    name = "mnemonics"
    title = "Mnemonics"
    reference = (
        "Liu et al. (2020), Mnemonics training: multi-class incremental learning without "
        "forgetting, arXiv:2002.10211"
    )
    published = "Mnemonics"
    stores = "one adapter, one head, optimized exemplars of each class, and their mean features"
    defaults: ClassVar[Mapping[str, float]] = {"memory": 200, "epochs": 10, "lr": 3e-4, "eta": 3.0}

    def end(self, task: Task, training_set: TrainingSet) -> None:
        super().end(task, training_set)
        new = self.features(training_set.token_cache, len(task)), training_set.targets[: len(task)]
        for number in self.exemplars.tasks:
            name = f"exemplars.{number}.images"
            images, targets = self.tensors[name], self.tensors[f"exemplars.{number}.targets"].cpu()
            if number == self.learned:
                optimized = self._optimize(images, targets, *new)
            else:
                optimized = images.clone()
                features = self.features(self.token_cache(images), len(images))
                for part, other in ((EVEN, ODD), (ODD, EVEN)):
                    optimized[part] = self._optimize(
                        images[part], targets[part], features[other], targets[other]
                    )
            self.tensors[name] = optimized
        self.update_means()

    def _optimize(
        self, images: Tensor, targets: Tensor, data: Tensor, data_targets: Tensor
    ) -> Tensor:
        """Return exemplars optimized so that a step on them fits `data`, features of their task."""
        if set(targets.tolist()) != set(data_targets.tolist()):
            return images  # Too few to split: the other half has different classes.
        device = self.backbone.device
        pixels = (images.to(device).float() / 255).requires_grad_()
        inner, outer = (
            F.one_hot(t, len(self.classes)).float().to(device) for t in (targets, data_targets)
        )
        optimizer = torch.optim.Adam([pixels], lr=self.options["lr"])
        weight, bias, eta = self.head.weight, self.head.bias, self.options["eta"]
        for epoch in range(int(self.options["epochs"])):
            for index in shuffled(len(images), self.settings, self.learned, epoch, "mnemonics"):
                features = self._pixel_features(pixels[index])
                slope = (F.linear(features, weight, bias).sigmoid() - inner[index]) / len(index)
                stepped = weight - eta * slope.mT @ features, bias - eta * slope.sum(0)
                loss = F.binary_cross_entropy_with_logits(F.linear(data, *stepped), outer)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return (pixels.detach() * 255).round().clamp(0, 255).to(images)

    def _pixel_features(self, pixels: Tensor) -> Tensor:
        """Return features of exemplars with gradients to their pixels."""
        backbone, adapter = self.backbone, self.adapter
        tokens = backbone.run(backbone.embed(pixels), stop=adapter.first_layer)
        return backbone.pool(adapted(backbone, adapter, tokens))
