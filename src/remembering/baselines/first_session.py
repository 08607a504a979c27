"""Base classes of methods that train one adapter on the first task, as the default model does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remembering import schema
from remembering.adapters.lora import Adapter
from remembering.baselines.base import FeatureLearner
from remembering.config import ClassifierSettings, Settings
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.inference.encoding import deep_task_features
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.checkpoint import digest
from remembering.learning.classes import new_adapter
from remembering.learning.training import adapted
from remembering.routing.classifier import GaussianClassifier
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator

ADAPTER = ("adapter.a", "adapter.b")


class FirstSession(FeatureLearner):
    """Base class of methods that train their adapter on the first task only, by cross entropy.

    The adapter is bit for bit that of the default model with the same settings after its first
    task: the same rank, steps, augmentation, images and random numbers. With a cache, all methods
    share its training and its features. Like methods on frozen features, they learn later tasks
    from features: the normalized CLS token.
    """

    adapts_as_model = True

    def learn_task(self, task: Task, progress: Progress) -> None:
        if not self.learned:
            self._adapt(task, progress)
        super().learn_task(task, progress)

    @property
    def adapter(self) -> Adapter:
        """The adapter."""
        a, b = (self.tensors[name] for name in ADAPTER)
        return Adapter(a, b, self.settings.first_layer)

    @property
    def trained(self) -> int:
        return self.adapter.parameters

    def features(self, images: ImageSequence) -> Tensor:
        prefix = f"{self._feature_key} {self.settings.first_layer}"
        maker = f"{prefix} {digest([self.adapter.a, self.adapter.b])}"
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        return self.made_once([maker], images, lambda _: [self._features(token_cache)])[0]

    @property
    def _feature_key(self) -> str:
        """Identifies `_features` in the cache."""
        return "CLS"

    @torch.no_grad()
    def _features(self, token_cache: TokenCache) -> Tensor:
        """Return the features (n, dim) of all images under the adapter."""
        backbone, adapter = self.backbone, self.adapter
        parts = [
            backbone.pool(adapted(backbone, adapter, token_cache[index]))
            for index in batches(len(token_cache.images))
        ]
        return torch.cat(parts)

    @property
    def _model_settings(self) -> Settings:
        """The settings with a gaussian classifier and everything explicit."""
        settings = self.settings
        if settings.classifier.kind == "head":
            settings = replace(settings, classifier=ClassifierSettings())
        return settings.resolved(self.backbone.depth)

    def _adapt(self, task: Task, progress: Progress) -> None:
        settings = self._model_settings

        def make(missing: Sequence[int]) -> list[Tensor]:
            classifier = GaussianClassifier(settings.classifier)
            rng = generator(settings.seed, "classifier")
            calibration = classifier.choose_calibration(task.targets, rng)
            tokens = TokenCache(self.backbone, task.images, settings.first_layer)
            adapter, _ = new_adapter(settings, task, tokens, calibration, 0, progress)
            return [(adapter.a, adapter.b)[i] for i in missing]

        key = f"first session {schema.write(settings)} {digest([task.targets])}"
        makers = [f"{key} {name}" for name in ADAPTER]
        trained = self.made_once(makers, task.images, make)
        self.tensors |= dict(zip(ADAPTER, trained, strict=True))


class ModelFeatures(FirstSession):
    """Base class of methods on the features that the classifier of the default model reads.

    These are the CLS token and the mean of the other tokens after several layers, under the
    adapter of the first task. Flips, which the default model adds, are not used.
    """

    @property
    def _feature_key(self) -> str:
        return f"layers {self._model_settings.classifier.layers}"

    def _features(self, token_cache: TokenCache) -> Tensor:
        layers = self._model_settings.classifier.layers
        return deep_task_features(token_cache, layers, self.adapter)
