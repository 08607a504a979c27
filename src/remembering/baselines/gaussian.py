"""The class Gaussians of the default model, on the frozen backbone."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.baselines.base import Baseline
from remembering.config import ClassifierSettings
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.inference.encoding import encode_task
from remembering.routing.gaussian import GaussianRouter
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator


class FrozenGaussians(Baseline):
    """Fit class means and one covariance to features of several layers of the frozen backbone.

    This is the classifier of the default model without any adapter and without second views; the
    gap to the full model is the contribution of these two. The prediction is the class with the
    largest likelihood. A label that occurs in several tasks has the largest of its likelihoods.
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
        router = router.with_expert(self.learned, expert)
        self.extra_state[str(self.learned)] = self.targets(task.classes).tolist()
        self.tensors = {f"shared.{key}": value for key, value in router.shared.items()}
        for number, expert in router.experts.items():
            self.tensors |= {f"{number}.{key}": value for key, value in expert.items()}

    def scores(self, images: ImageSequence) -> Tensor:
        router = self._router()
        encoded = encode_task(self.backbone, router, 0, images, cache_tokens=False)
        logits = router.class_logits(encoded.features)
        columns = torch.tensor([c for i in range(self.learned) for c in self.extra_state[str(i)]])
        index = columns.to(logits.device).expand(len(logits), -1)
        lowest = logits.new_full((len(logits), len(self.classes)), float("-inf"))
        return lowest.scatter_reduce(1, index, logits, "amax")

    def _router(self) -> GaussianRouter:
        """Rebuild the router from `tensors`."""
        settings = ClassifierSettings().resolved(self.backbone.depth)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in self.tensors.items():
            part, key = name.split(".")
            parts.setdefault(part, {})[key] = value
        shared = parts.pop("shared", {})
        experts = {int(n): parts[n] for n in sorted(parts, key=int)}
        return GaussianRouter(settings, experts, shared)
