"""From images to a `Prediction`: encode once, route, adapt, classify."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.conversion import as_images
from remembering.data.images import Images, ImageSequence, ImagesLike, image_paths
from remembering.errors import RememberingError
from remembering.inference.classify import (
    Classified,
    answer,
    class_logits,
    task_scores,
    tasks_of_labels,
)
from remembering.inference.encoding import encode
from remembering.inference.neighbors import nearest_kept
from remembering.inference.prediction import Prediction, choose_tasks
from remembering.inference.token_cache import BATCH_SIZE, batches
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import MmapBuffer
from remembering.runtime.progress import SILENT, Progress
from remembering.state import ModelState


@dataclass(frozen=True, eq=False)
class _Routed:
    """A batch of images after routing.

    Attributes:
        images: The images.
        features: Router features; None if there is only one adapter to choose.
        tokens: Tokens that enter the first adapted layer.
        scores: Router scores (n, tasks).
        tasks: Position of the most familiar task.
    """

    images: Images
    features: Tensor | None
    tokens: Tensor
    scores: Tensor
    tasks: Tensor


def predict(
    state: ModelState,
    backbone: Backbone,
    images: ImagesLike,
    groups: Iterable[Hashable] | Tensor | None = None,
    false_alarm_rate: float | None = None,
    top_k: int | None = None,
    progress: Progress = SILENT,
    batch_size: int = BATCH_SIZE,
    neighbors: int = 0,
) -> Prediction:
    """Answer images without knowing their task.

    Args:
        state: What was learned.
        backbone: The frozen backbone that it was learned on.
        images: See `RememberingTransformer.predict`.
        groups: Group of each image; the images of a group are routed together. If None, each
            image is routed alone, and its answer does not depend on the other images.
        false_alarm_rate: Target false-alarm rate in (0, 1). If None, nothing is flagged.
        top_k: Number of most probable labels to list for each image.
        progress: Reports the number of images done.
        batch_size: Images that are answered at a time.
        neighbors: Number of most similar replay images to list for each image.
    """
    _require_tasks(state)
    rate = false_alarm_rate
    if rate is not None and not (isinstance(rate, Real) and 0 < rate < 1):
        raise RememberingError(f"false_alarm_rate = {rate} must lie between 0 and 1, such as 0.05")
    if top_k is not None and top_k < 1:
        raise RememberingError(f"top_k = {top_k} must be at least 1")
    if batch_size < 1:
        raise RememberingError(f"batch_size = {batch_size} must be at least 1")
    if neighbors < 0:
        raise RememberingError(f"neighbors = {neighbors} must be at least 0")
    sequence = _require_images(images)
    keys = None if groups is None else _group_numbers(groups, len(sequence))
    with progress.track("predicting", len(sequence)) as step:
        routed = _route(state, backbone, sequence, batch_size)
        if keys is not None:
            routed = _regroup(routed, keys, len(sequence))
        parts = []
        for batch in routed:
            parts.append((_classify(state, backbone, batch, rate is not None), batch.scores))
            step(len(batch.tasks))
    classified = Classified.concatenate([part for part, _ in parts])
    probabilities, tasks = answer(state, classified, keys)
    _require_finite(probabilities, "probabilities")
    scores = torch.cat([scores for _, scores in parts])
    if state.heads:
        tasks = tasks_of_labels(state, probabilities, tasks, scores)
    novelty, paths = classified.novelty, image_paths(sequence)
    prediction = Prediction(
        labels=[state.classes[i] for i in probabilities.argmax(1).tolist()],
        probabilities=probabilities,
        classes=state.classes,
        tasks=[state.tasks[i].name for i in tasks.tolist()],
        adapters=state.gate[tasks],
        scores=task_scores(state, classified, scores),
        novelty=novelty,
        unknown=None if novelty is None or rate is None else novelty <= rate,
        task_classes={task.name: task.classes for task in state.tasks},
        files=None if paths is None else [str(path) for path in paths],
        neighbors=nearest_kept(state, backbone, sequence, state.gate[tasks], neighbors)
        if neighbors
        else None,
    )
    return prediction if top_k is None else replace(prediction, top_k=prediction.top(top_k))


def novelty(
    state: ModelState, backbone: Backbone, images: ImagesLike, progress: Progress = SILENT
) -> Tensor:
    """Return p-values (n,) of the hypothesis that an image belongs to a learned task."""
    p_values = predict(state, backbone, images, false_alarm_rate=0.5, progress=progress).novelty
    assert p_values is not None
    return p_values


def router_features(
    state: ModelState,
    backbone: Backbone,
    images: ImageSequence,
    distributed: Distributed = SINGLE_PROCESS,
) -> Tensor:
    """Return what the router reads of images; does not depend on what was learned.

    Each process computes a share, so all of them must call this.
    """
    first_layer = state.settings.first_layer
    return distributed.rows(
        batches(len(images)),
        lambda index: encode(backbone, state.router, first_layer, images[index])[0],
    )


def layers_run(state: ModelState, depth: int) -> float:
    """Return the mean number of layers that an image runs through, for a backbone of some depth.

    Second views are counted by their share.
    """
    settings = state.settings
    gaussian = settings.classifier.kind == "gaussian"
    routed = len(state.adapters) > 1 or not gaussian
    extra = max(0, settings.router.layers[-1] - settings.first_layer) if routed else 0
    views = 1 + (settings.classifier.second_view if gaussian else 0)
    return depth * views + extra


def _route(
    state: ModelState, backbone: Backbone, images: ImageSequence, batch_size: int
) -> Iterator[_Routed]:
    for index in batches(len(images), batch_size):
        batch = images[index]
        if len(state.adapters) == 1 and state.settings.classifier.kind == "gaussian":
            tokens = backbone.run(backbone.embed(batch), stop=state.settings.first_layer)
            scores = torch.zeros(len(index), len(state.tasks), dtype=torch.float64)
            yield _Routed(batch, None, tokens, scores, choose_tasks(scores))
            continue
        features, tokens = encode(backbone, state.router, state.settings.first_layer, batch)
        _require_finite(features, "features of the router")
        scores = state.router.scores(features).cpu()
        yield _Routed(batch, features, tokens, scores, choose_tasks(scores))


def _regroup(routed: Iterable[_Routed], groups: Tensor, count: int) -> Iterator[_Routed]:
    """Route the images of a group together, once all of them are scored."""
    tokens = MmapBuffer(count)
    buffered: list[_Routed] = []
    start = 0
    for batch in routed:
        stop = start + len(batch.tasks)
        tokens.put(torch.arange(start, stop), batch.tokens)
        buffered.append(replace(batch, tokens=tokens.tensor[start:stop]))
        start = stop
    tasks = choose_tasks(torch.cat([batch.scores for batch in buffered]), groups)
    sizes = [len(batch.tasks) for batch in buffered]
    for batch, chosen in zip(buffered, tasks.split(sizes), strict=True):
        yield replace(batch, tasks=chosen)


def _classify(
    state: ModelState, backbone: Backbone, batch: _Routed, needs_novelty: bool
) -> Classified:
    classified = class_logits(
        state, backbone, batch.images, batch.tokens, state.gate[batch.tasks], needs_novelty
    )
    if needs_novelty and classified.novelty is None and batch.features is not None:
        p_values = state.router.novelty(batch.features).cpu()
        return replace(classified, tasks=batch.tasks, novelty=p_values)
    return replace(classified, tasks=batch.tasks)


def _group_numbers(groups: Iterable[Hashable] | Tensor, count: int) -> Tensor:
    keys = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if len(keys) != count:
        raise RememberingError(
            f"{len(keys)} groups are given for {count} images; give one group per image"
        )
    try:
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    except TypeError as error:
        raise RememberingError(f"groups must be names or numbers ({error})") from error
    return torch.tensor([numbers[key] for key in keys])


def _require_finite(values: Tensor, what: str) -> Tensor:
    """Refuse to answer with NaN, which the weights of a hostile or damaged model can cause."""
    if not values.isfinite().all():
        raise RememberingError(
            f"the {what} are not finite: the weights of an adapter are too large; restore the "
            "model from a copy"
        )
    return values


def _require_tasks(state: ModelState) -> None:
    if not state.tasks:
        raise RememberingError("the model has not learned a task yet; call learn first")


def _require_images(images: ImagesLike) -> ImageSequence:
    sequence = as_images(images)
    if not len(sequence):
        raise RememberingError("there are no images; give at least one")
    return sequence
