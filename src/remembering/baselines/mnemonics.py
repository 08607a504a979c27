"""Mnemonics: exemplars whose pixels are trained, so that training on them serves the task."""

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
    """iCaRL whose exemplars E are parameters of a problem with two levels.

    Below, a copy of the model takes a step on the exemplars; above, the exemplars are changed so
    that the model after that step does well on the data D of their task:

        min_E ℓ(D; Θ'(E)),   Θ'(E) = Θ − η ∇_Θ ℓ(E; Θ).

    E begins as the herded images. Old exemplars are adjusted to the new model: their data are
    gone, so each half of those of a task serves as D for the other.

    Adapted: Θ is the head alone, as in the authors' code; the adapter stands still. The step below
    has then a closed form, ∇_W ℓ(E) = (g(E) − Y)ᵀ φ(E) / |E| with g the sigmoid of the outputs and
    φ the features, so the gradient of the pixels needs no second derivative of a Transformer, and
    φ(D) is computed once. The model is iCaRL's, one of four that the paper plugs mnemonics into.
    After training the pixels are rounded to 8 bits: they take what exemplars take. `lr` is that of
    Adam on pixels in 0..1.

    Memory as in iCaRL. The paper takes 50 epochs over exemplars, this takes 10: they are most of
    its time. η and `lr` were chosen on scikit-learn's digits, on training images that were held
    out.
    """

    name = "mnemonics"
    title = "Mnemonics"
    reference = (
        "Liu et al. (2020), Mnemonics training: multi-class incremental learning without "
        "forgetting, arXiv:2002.10211"
    )
    published = "Mnemonics"
    stores = "one adapter, one head, trained exemplar images of every class, and their mean feature"
    defaults: ClassVar[Mapping[str, float]] = {"memory": 200, "epochs": 10, "lr": 3e-4, "eta": 3.0}

    def end(self, task: Task, training_set: TrainingSet) -> None:
        super().end(task, training_set)
        new = self.features(training_set.token_cache, len(task)), training_set.targets[: len(task)]
        for number in self.exemplars.tasks:
            name = f"exemplars.{number}.images"
            images, targets = self.tensors[name], self.tensors[f"exemplars.{number}.targets"].cpu()
            if number == self.learned:
                changed = self._trained(images, targets, *new)
            else:
                changed = images.clone()
                features = self.features(self.token_cache(images), len(images))
                for part, other in ((EVEN, ODD), (ODD, EVEN)):
                    changed[part] = self._trained(
                        images[part], targets[part], features[other], targets[other]
                    )
            self.tensors[name] = changed
        self.average()

    def _trained(self, images: Tensor, targets: Tensor, data: Tensor, wanted: Tensor) -> Tensor:
        """These exemplars, better suited to teach a head what features of their task mean."""
        if set(targets.tolist()) != set(wanted.tolist()):
            return images  # too few to halve: the other half has other classes
        device = self.backbone.device
        pixels = (images.to(device).float() / 255).requires_grad_()
        taught, asked = (
            F.one_hot(t, len(self.classes)).float().to(device) for t in (targets, wanted)
        )
        optimizer = torch.optim.Adam([pixels], lr=self.options["lr"])
        weight, bias = self.head.weight, self.head.bias
        for epoch in range(int(self.options["epochs"])):
            for index in shuffled(len(images), self.settings, self.learned, epoch, "mnemonics"):
                features = self._read(pixels[index])
                slope = (F.linear(features, weight, bias).sigmoid() - taught[index]) / len(index)
                eta = self.options["eta"]
                after = F.linear(
                    data, weight - eta * slope.mT @ features, bias - eta * slope.sum(0)
                )
                loss = F.binary_cross_entropy_with_logits(after, asked)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return (pixels.detach() * 255).round().clamp(0, 255).to(images)

    def _read(self, pixels: Tensor) -> Tensor:
        """Features of exemplars; gradients reach the pixels."""
        backbone, adapter = self.backbone, self.adapter
        tokens = backbone.run(backbone.embed(pixels), stop=adapter.first_layer)
        return backbone.pool(adapted(backbone, adapter, tokens))
