"""Which class: the classifier of each image's adapter, in the same forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import Images, ImageSequence
from remembering.inference.encoding import FlippedImages, deep_features, flip_horizontally
from remembering.inference.prediction import choose_tasks
from remembering.inference.token_cache import TokenCache, batches
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.state import ModelState


@dataclass(frozen=True, eq=False)
class Classified:
    """Images after classification.

    Attributes:
        logits: (n, columns of the state); −∞ for classes of other adapters. With heads, log
            probabilities (n, labels of the state).
        tasks: Task that each image was routed to, (n,).
        novelty: p-values (n,), if requested.
    """

    logits: Tensor
    tasks: Tensor
    novelty: Tensor | None = None

    @classmethod
    def concatenate(cls, parts: Sequence[Classified]) -> Classified:
        """Put batches together."""
        p_values = [part.novelty for part in parts if part.novelty is not None]
        return cls(
            torch.cat([part.logits for part in parts]),
            torch.cat([part.tasks for part in parts]),
            torch.cat(p_values) if p_values else None,
        )


@torch.inference_mode()
def class_logits(
    state: ModelState,
    backbone: Backbone,
    images: Images,
    tokens: Tensor,
    adapters: Tensor,
    needs_novelty: bool = False,
) -> Classified:
    """Run the adapted layers and the classifiers, each image under its own adapter.

    Args:
        state: What was learned.
        backbone: The frozen backbone.
        images: The images, for second views.
        tokens: Their tokens at the first adapted layer.
        adapters: Number of each image's adapter, (n,).
        needs_novelty: Whether to compute p-values (gaussian classifiers only).
    """
    tokens, settings = tokens.to(backbone.device), state.settings
    if settings.classifier.kind == "head":
        active = state.adapters.mixed(adapters)
        last = backbone.finish(tokens, start=settings.first_layer, adapters=active)
        probabilities = state.stacked_heads.probabilities(backbone, last, adapters).cpu()
        return Classified(probabilities.log(), torch.zeros_like(adapters))
    features = _features(state, backbone, tokens, adapters)

    def flipped(rows: Tensor) -> Tensor:
        again = backbone.embed(flip_horizontally(_take(images, rows)))
        again = backbone.run(again, stop=settings.first_layer)
        return _features(state, backbone, again, adapters[rows])

    return classify_features(state, features, flipped, adapters, needs_novelty)


@torch.inference_mode()
def classify_features(
    state: ModelState,
    features: Tensor,
    flipped: Callable[[Tensor], Tensor],
    adapters: Tensor,
    needs_novelty: bool = False,
) -> Classified:
    """Run the gaussian classifiers on features.

    Args:
        state: What was learned.
        features: (n, features), each under the image's adapter.
        flipped: Returns the features of the flipped images at some rows, for second views.
        adapters: Number of each image's adapter, (n,).
        needs_novelty: Whether to compute p-values.
    """
    logits = torch.full((len(adapters), len(state.columns.label)), -torch.inf).double()
    p_values = torch.ones(len(adapters), dtype=torch.float64)
    for number in adapters.unique().tolist():
        rows = (adapters == number).nonzero().flatten()
        classifier = state.classifiers[number]
        own = classifier.logits_with_flips(
            features[rows],
            lambda some: flipped(rows[some]),  # noqa: B023 (called at once)
        )
        if needs_novelty:
            p_values[rows] = classifier.novelty(features[rows]).cpu()
        columns = (state.columns.adapter == number).nonzero().flatten()
        logits[rows[:, None], columns] = own
    return Classified(logits, torch.zeros_like(adapters), p_values if needs_novelty else None)


def answer(
    state: ModelState, classified: Classified, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return probabilities (n, labels) and the position of each image's task.

    Args:
        state: What was learned.
        classified: Images after classification.
        groups: Group number of each image. The images of a group belong to one task.
    """
    if state.settings.classifier.kind == "head":
        return classified.logits.exp(), classified.tasks
    logits, columns = classified.logits, state.columns
    if groups is not None:
        tasks = choose_tasks(_task_scores(logits, columns.task, len(state.tasks)), groups)
        logits = logits.masked_fill(columns.task != tasks[:, None], -torch.inf)
    posterior = logits.softmax(1)
    zeros = posterior.new_zeros(len(posterior), len(state.classes))
    probabilities = zeros.index_add(1, columns.label, posterior).float()
    # The task of the most probable label: that of the most probable column may not have the label.
    foreign = columns.label != probabilities.argmax(1, keepdim=True)
    return probabilities, columns.task[posterior.masked_fill(foreign, -1).argmax(1)]


def tasks_of_labels(
    state: ModelState, probabilities: Tensor, tasks: Tensor, scores: Tensor
) -> Tensor:
    """Return the position of a task that has the most probable label, for answers of heads.

    A head may serve several tasks. If the one that an image was routed to lacks the label, it is
    the most familiar one among those of the same adapter that have it.

    Args:
        state: What was learned.
        probabilities: (n, labels).
        tasks: Task that each image was routed to, (n,).
        scores: Router scores (n, tasks).
    """
    has = torch.zeros(len(state.classes), len(state.tasks), dtype=torch.bool)
    has[state.columns.label, state.columns.task] = True
    possible = has[probabilities.argmax(1)] & (state.gate == state.gate[tasks][:, None])
    best = scores.masked_fill(~possible, torch.inf).argmin(1)
    return torch.where(possible[torch.arange(len(tasks)), tasks], tasks, best)


@dataclass(frozen=True, eq=False)
class AdapterOutputs:
    """What one adapter computes of some images, independently of what its classifier learned.

    Attributes:
        plain: Features (n, features), or with heads the logits (n, classes of the head).
        flipped: Features of the flipped images, if the classifier uses them.
    """

    plain: Tensor
    flipped: Tensor | None = None


@torch.inference_mode()
def adapter_outputs(
    state: ModelState,
    backbone: Backbone,
    images: ImageSequence,
    adapter: int,
    distributed: Distributed = SINGLE_PROCESS,
) -> AdapterOutputs:
    """Run all images under one adapter; each process computes a share, so all must call this."""
    settings, weights = state.settings, state.adapters[adapter]
    active, start = weights.active(), settings.first_layer

    def features(images: ImageSequence) -> Tensor:
        tokens = TokenCache(backbone, images, start)
        layers = settings.classifier.layers
        return distributed.rows(
            batches(len(images)),
            lambda index: deep_features(backbone, tokens[index], layers, start, active),
        ).cpu()

    if settings.classifier.kind == "gaussian":
        uses_flip = state.classifiers[adapter].uses_flip
        return AdapterOutputs(
            features(images), features(FlippedImages(images)) if uses_flip else None
        )
    head, tokens = state.heads[adapter], TokenCache(backbone, images, start)

    def logits(index: Tensor) -> Tensor:
        return head.logits(backbone, backbone.finish(tokens[index], start=start, adapters=active))

    every = distributed.rows(batches(len(images)), logits)
    return AdapterOutputs(every[:, head.columns].cpu())


@torch.inference_mode()
def classify_outputs(
    state: ModelState, outputs: Mapping[int, AdapterOutputs], adapters: Tensor
) -> Classified:
    """Classify images from the outputs of all adapters that they were routed to.

    Args:
        state: What was learned.
        outputs: Outputs of all images by adapter.
        adapters: Number of each image's adapter, (n,).
    """
    rows = {n: (adapters == n).nonzero().flatten() for n in adapters.unique().tolist()}
    if state.settings.classifier.kind == "head":
        position = {label: i for i, label in enumerate(state.classes)}
        probabilities = torch.zeros(len(adapters), len(position))
        for number, own in rows.items():
            columns = torch.tensor([position[label] for label in state.heads[number].classes])
            probabilities[own[:, None], columns] = outputs[number].plain[own].softmax(1)
        return Classified(probabilities.log(), torch.zeros_like(adapters))
    first = next(iter(outputs.values())).plain
    features = torch.empty(len(adapters), first.shape[1], dtype=first.dtype)
    for number, own in rows.items():
        features[own] = outputs[number].plain[own]

    def flipped(some: Tensor) -> Tensor:
        found = outputs[int(adapters[some[0]])].flipped  # all of them have one adapter
        assert found is not None
        return found[some]

    return classify_features(state, features, flipped, adapters, needs_novelty=True)


def _features(state: ModelState, backbone: Backbone, tokens: Tensor, adapters: Tensor) -> Tensor:
    settings = state.settings
    active = state.adapters.mixed(adapters)
    return deep_features(backbone, tokens, settings.classifier.layers, settings.first_layer, active)


def task_scores(state: ModelState, classified: Classified, router_scores: Tensor) -> Tensor:
    """Return the scores (n, tasks) that a prediction reports.

    With gaussian classifiers these are negative log-likelihoods under the adapter that answered, ∞
    for tasks of other adapters; with heads, those of the router.
    """
    if state.settings.classifier.kind == "head":
        return router_scores
    return _task_scores(classified.logits, state.columns.task, len(state.tasks))


def _task_scores(logits: Tensor, owner: Tensor, tasks: int) -> Tensor:
    """Return negative log-likelihoods (n, tasks); ∞ for tasks of other adapters."""
    top = logits.max(1, keepdim=True).values
    sums = logits.new_zeros(len(logits), tasks).index_add(1, owner, (logits - top).exp())
    return -(sums.log() + top)


def _take(images: Images, rows: Tensor) -> Images:
    return images[rows] if isinstance(images, Tensor) else [images[i] for i in rows.tolist()]
