"""The class Gaussians of the default model: on the frozen backbone, and as tensors of a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from remembering.baselines.base import Baseline
from remembering.config import ClassifierSettings
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.inference.encoding import encode_task
from remembering.routing.gaussian import GaussianRouter, grouped_logsumexp
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator

R = TypeVar("R", bound=GaussianRouter)


class FrozenGaussians(Baseline):
    """Fit class means and one covariance to features of several layers of the frozen backbone.

    This is the classifier of the default model without any adapter and without second views; the
    gap to the full model is the contribution of these two. The prediction is the class with the
    largest likelihood. The likelihoods of a label that occurs in several tasks are added.
    """

    name, title = "gaussian", "Gaussians, frozen"
    reference = "Hastie, Tibshirani, Friedman (2009), The Elements of Statistical Learning, 4.3"
    stores = "class means, a few feature vectors per task, and one shared covariance matrix"
    every_task = False

    def learn_task(self, task: Task, progress: Progress) -> None:
        router = self._router()
        with progress.track(f"reading {task.name} ({self.title})", len(task)) as step:
            encoded = encode_task(self.backbone, router, 0, task.images, step, cache_tokens=False)
        rng = generator(self.settings.seed, "router")
        expert = router.fit(encoded.features, task.targets, rng)
        self.extra_state[str(self.learned)] = self.targets(task.classes).tolist()
        self.tensors = packed(router.with_expert(self.learned, expert))

    def scores(self, images: ImageSequence) -> Tensor:
        router = self._router()
        encoded = encode_task(self.backbone, router, 0, images, cache_tokens=False)
        logits = router.class_logits(encoded.features)
        columns = [c for i in range(self.learned) for c in self.extra_state[str(i)]]
        return label_scores(logits, columns, len(self.classes))

    def _router(self) -> GaussianRouter:
        settings = ClassifierSettings().resolved(self.backbone.depth)
        return unpacked(GaussianRouter(settings), self.tensors)


def packed(router: GaussianRouter) -> dict[str, Tensor]:
    """Return the tensors of a router by name."""
    tensors = {f"shared.{key}": value for key, value in router.shared.items()}
    for number, expert in router.experts.items():
        tensors |= {f"{number}.{key}": value for key, value in expert.items()}
    return tensors


def unpacked(empty: R, tensors: Mapping[str, Tensor]) -> R:
    """Return a router like `empty` with the tensors that `packed` returned."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        part, key = name.split(".")
        parts.setdefault(part, {})[key] = value
    shared = parts.pop("shared", {})
    experts = {int(n): parts[n] for n in sorted(parts, key=int)}
    return type(empty)(empty.settings, experts, shared)


def label_scores(logits: Tensor, columns: list[int], labels: int) -> Tensor:
    """Add the likelihoods of each label's columns.

    Args:
        logits: Log-likelihoods (n, classes of all tasks).
        columns: The label of each column.
        labels: Number of labels.
    """
    return grouped_logsumexp(logits, torch.tensor(columns, device=logits.device), labels)
