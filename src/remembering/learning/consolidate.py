"""Consolidation: retrain a shared adapter jointly on the kept images of all its tasks.

Training across tasks improves the features; the class statistics, whose images are gone, follow by
one linear map per layer. Statistics stay exact in a fixed reference space, that of the adapter
before its first consolidation, so that maps are refitted and never chained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from scipy.stats import binomtest  # type: ignore[import-untyped]
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence, joined, subset
from remembering.errors import RememberingError
from remembering.inference.encoding import FlippedImages, deep_task_features
from remembering.inference.token_cache import TokenCache
from remembering.learning.checkpoint import Checkpoint, training_key
from remembering.learning.training import Batch, Callback, TrainingSet, train
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.features import extract_features
from remembering.routing.symmetric import compress, restore
from remembering.runtime.distributed import current
from remembering.runtime.progress import SILENT, Progress
from remembering.state import ModelState, Reference

DISTILLATION = 0.15
"""Weight of the mean squared difference to the reference features."""
RIDGE = 0.3
MEAN_CORRECTION = 0.5
SIGNIFICANCE = 0.05
"""A new adapter is rejected if so many more errors on held-out images have less probability."""


@dataclass(frozen=True)
class Consolidated:
    """What `consolidate` did with an adapter.

    Attributes:
        adapter: Number of the adapter.
        images: Number of kept images.
        before: Accuracy on held-out kept images before.
        after: The same after.
        accepted: Whether the new adapter is kept: unless it is significantly worse.
    """

    adapter: int
    images: int
    before: float
    after: float
    accepted: bool


def consolidate(
    state: ModelState,
    backbone: Backbone,
    adapter: int,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
) -> tuple[ModelState, Consolidated]:
    """Retrain an adapter on the kept images of all tasks that it serves.

    Args:
        state: What was learned.
        backbone: The frozen backbone.
        adapter: Number of the adapter.
        progress: Reports progress.
        checkpoint: Where to keep the progress of the training.

    Returns:
        The new state, and what was done. If the new adapter is worse on held-out images, the state
        is unchanged.

    Raises:
        RememberingError: If the tasks of the adapter have no replay images.
    """
    reference = state.references.get(adapter) or Reference(
        state.adapters[adapter], state.classifiers[adapter]
    )
    kept = _KeptImages.of(state, adapter)
    uses_flip, settings = reference.classifier.uses_flip, state.settings
    layers, first_layer = settings.classifier.layers, settings.first_layer
    views: list[ImageSequence] = [kept.images]
    if uses_flip:
        views.append(FlippedImages(kept.images))
    tokens = TokenCache(backbone, joined(views), first_layer).filled(current())
    old = deep_task_features(tokens, layers, reference.adapter)
    columns = kept.columns.repeat(len(views))
    train_rows = (~kept.held_out).repeat(len(views)).nonzero().flatten()
    augment = settings.augment or ("crop" if uses_flip else "shift")
    new_adapter = _train(
        replace(state, settings=replace(settings, augment=augment)),
        backbone,
        reference.adapter,
        tokens,
        old,
        columns,
        train_rows,
        progress,
        checkpoint,
    )
    new = deep_task_features(tokens, layers, new_adapter)
    fitted = _carry(reference.classifier, old, new, columns, kept, train_rows, len(layers))
    held = kept.held_out.nonzero().flatten()
    current_features = deep_task_features(tokens, layers, state.adapters[adapter])
    before = _correct(state.classifiers[adapter], current_features[held], columns[held])
    after = _correct(fitted, new[held], columns[held])
    report = Consolidated(
        adapter,
        images=len(kept.images),
        before=float(before.float().mean()),
        after=float(after.float().mean()),
        accepted=not is_worse(before, after, SIGNIFICANCE),
    )
    if not report.accepted:
        return state, report
    return (
        replace(
            state,
            adapters=state.adapters.with_adapter(adapter, new_adapter),
            classifiers={**state.classifiers, adapter: fitted},
            references={**state.references, adapter: reference},
        ),
        report,
    )


def consolidate_shared(
    state: ModelState,
    backbone: Backbone,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
) -> tuple[ModelState, tuple[Consolidated, ...]]:
    """Consolidate every adapter that serves several tasks.

    Raises:
        RememberingError: If there is none, or its tasks have no replay images.
    """
    shared = [number for number in state.adapters if len(state.served_by(number)) > 1]
    if not shared:
        raise RememberingError("no adapter serves several tasks; there is nothing to consolidate")
    reports = []
    for number in shared:
        state, report = consolidate(state, backbone, number, progress, checkpoint)
        reports.append(report)
    return state, tuple(reports)


@dataclass(frozen=True, eq=False)
class _KeptImages:
    """The kept images of all tasks of an adapter.

    Attributes:
        images: The images.
        columns: Class column of each image in the adapter's classifier.
        tasks: Task number of each image.
        targets: Class index of each image within its task.
        held_out: Whether the image is held out from training.
    """

    images: Tensor
    columns: Tensor
    tasks: Tensor
    targets: Tensor
    held_out: Tensor

    @classmethod
    def of(cls, state: ModelState, adapter: int) -> _KeptImages:
        served = state.served_by(adapter)
        missing = [task.name for task in served if task.number not in state.memories]
        if missing:
            raise RememberingError(
                f"adapter {adapter} cannot be consolidated: task '{missing[0]}' has no replay "
                "images; forget it and learn it again with memory (remember learn --memory 100)"
            )
        images, columns, tasks, targets, held_out = [], [], [], [], []
        start = 0
        for task in served:
            memory = state.memories[task.number]
            own = torch.tensor([task.classes.index(label) for label in memory.labels])
            images.append(memory.images)
            targets.append(own)
            columns.append(own + start)
            tasks.append(torch.full_like(own, task.number))
            held_out.append(torch.arange(len(own)) >= len(own) - memory.held_out)
            start += len(task.classes)
        parts = (columns, tasks, targets, held_out)
        return cls(torch.as_tensor(joined(images)), *map(torch.cat, parts))


class _FeatureDistillation(Callback):
    """Cross-entropy plus the squared difference to the reference features."""

    def __init__(self, layers: tuple[int, ...], reference: Tensor):
        self.layers, self.reference = layers, reference
        self._features: Tensor | None = None

    def forward(self, backbone: Backbone, adapter: Adapter, head: Head, tokens: Tensor) -> Tensor:
        states = list(
            backbone.states(tokens, self.layers, adapter.active(), start=adapter.first_layer)
        )
        self._features = extract_features(states, "pooled")
        return backbone.pool(states[-1])

    def loss(self, batch: Batch) -> Tensor:
        assert self._features is not None
        target = self.reference[batch.index].to(self._features.device)
        distance = (self._features - target).square().mean()
        return F.cross_entropy(batch.outputs, batch.targets) + DISTILLATION * distance


def _train(
    state: ModelState,
    backbone: Backbone,
    reference: Adapter,
    tokens: TokenCache,
    features: Tensor,
    columns: Tensor,
    rows: Tensor,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> Adapter:
    """Train from the reference adapter on the kept images, with a new head over all classes."""
    settings, number = state.settings, state.next_number
    images = len(rows)
    steps = min(2000, 500 + images // 12)
    epochs = max(1, round(steps * settings.batch_size / images))
    settings = replace(settings, epochs=epochs)
    cached = tokens.tokens
    cache = TokenCache(
        backbone,
        subset(tokens.images, rows),
        tokens.first_layer,
        None if cached is None else cached[rows],
    )
    targets = columns[rows]
    head = Head.linear(tuple(range(int(columns.max()) + 1)), backbone)
    inputs = [reference.a, reference.b, features[rows], targets]
    key = training_key(settings, number, inputs)
    training_set = TrainingSet(cache, targets, "consolidation", number, key)
    callback = _FeatureDistillation(settings.classifier.layers, features[rows])
    adapter, _ = train(
        backbone,
        reference,
        head,
        training_set,
        settings,
        progress=progress,
        checkpoint=checkpoint.part("consolidation") if checkpoint else None,
        callback=callback,
        distributed=current(),
    )
    return adapter


def _carry(
    reference: GaussianClassifier,
    old: Tensor,
    new: Tensor,
    columns: Tensor,
    kept: _KeptImages,
    rows: Tensor,
    blocks: int,
) -> GaussianClassifier:
    """Carry class statistics from the reference space to that of the new adapter.

    With P and Q the old and new features of the kept images, separately for each layer:
    A = (PᵀP + λI)⁻¹ (PᵀQ + λI), R = Q − P A, μ'_c = μ_c A + ½ · mean of R over the kept images of
    class c, W' = Aᵀ W A + (N / n) RᵀR.
    """
    p, q = (part[rows].double().chunk(blocks, dim=1) for part in (old, new))
    maps = []
    for source, target in zip(p, q, strict=True):
        gram, width = source.mT @ source, source.shape[1]
        ridge = RIDGE * gram.diagonal().mean() * width / len(rows)
        eye = ridge * torch.eye(width, dtype=gram.dtype, device=gram.device)
        maps.append(torch.linalg.solve(gram + eye, source.mT @ target + eye))
    whole = torch.block_diag(*maps)
    residual = new[rows].double() - old[rows].double() @ whole
    owner = columns[rows].to(residual.device)
    counts = torch.bincount(owner, minlength=int(columns.max()) + 1).clamp_min(1)
    correction = residual.new_zeros(len(counts), residual.shape[1]).index_add_(0, owner, residual)
    correction = MEAN_CORRECTION * correction / counts[:, None]
    shared = dict(reference.shared)
    scatter = whole.mT @ restore(shared) @ whole
    scatter = scatter + float(shared["count"]) / len(rows) * (residual.mT @ residual)
    shared |= compress(scatter)
    shared.pop("logit_correction", None)
    experts, start = {}, 0
    for number, expert in reference.experts.items():
        stop = start + len(expert["counts"])
        means = expert["sums"].double() / expert["counts"][:, None]
        moved = means @ whole + correction[start:stop]
        own = (kept.held_out & (kept.tasks == number)).nonzero().flatten()
        experts[number] = {
            "counts": expert["counts"],
            "sums": (moved * expert["counts"][:, None]).float(),
            "calibration_features": new[own].half(),
            "calibration_targets": kept.targets[own].to(new.device),
        }
        start = stop
    return GaussianClassifier(reference.settings, experts, shared).recalibrated()


def _correct(classifier: GaussianClassifier, features: Tensor, columns: Tensor) -> Tensor:
    return classifier.class_logits(features).argmax(1).cpu() == columns


def is_worse(before: Tensor, after: Tensor, significance: float) -> bool:
    """Test whether fewer images are correct after than before (sign test)."""
    lost, won = int((before & ~after).sum()), int((~before & after).sum())
    if lost + won == 0:
        return False
    return bool(binomtest(lost, lost + won, alternative="greater").pvalue < significance)
