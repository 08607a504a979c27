"""From images to a `Prediction`: encode once, route, adapt, combine."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import Images, ImageSequence, ImagesLike, as_images
from remembering.errors import RememberingError
from remembering.inference.combine import combine
from remembering.inference.encoding import encode
from remembering.inference.prediction import Prediction, choose_tasks
from remembering.inference.token_cache import TokenCache, batches
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import MmapBuffer
from remembering.runtime.progress import SILENT, Progress
from remembering.state import ModelState


@dataclass(frozen=True, eq=False)
class _Routed:
    """A batch of images after routing; `tasks` are positions in `state.tasks`."""

    tokens: Tensor
    scores: Tensor
    logits: Tensor | None
    novelty: Tensor | None
    tasks: Tensor


def predict(
    state: ModelState,
    backbone: Backbone,
    images: ImagesLike,
    groups: Iterable[Hashable] | Tensor | None = None,
    false_alarm_rate: float | None = None,
    top_k: int | None = None,
    progress: Progress = SILENT,
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
    """
    _require_tasks(state)
    rate = false_alarm_rate
    if rate is not None and not (isinstance(rate, Real) and 0 < rate < 1):
        raise RememberingError(f"false_alarm_rate = {rate} must lie between 0 and 1, such as 0.05")
    if top_k is not None and top_k < 1:
        raise RememberingError(f"top_k = {top_k} must be at least 1")
    sequence = _require_images(images)
    parts = []
    with progress.track("predicting", len(sequence)) as step:
        routed = _route(state, backbone, sequence, rate is not None)
        for batch in routed if groups is None else _regroup(routed, groups, len(sequence)):
            adapters = state.gate[batch.tasks]
            own = _adapt(state, backbone, batch.tokens, adapters)
            both = combined(state, own, batch.logits, adapters, hard_routing=groups is not None)
            parts.append((both, batch.scores, batch.tasks, batch.novelty))
            step(len(batch.tasks))
    probabilities, scores, tasks = (
        torch.cat(column) for column in list(zip(*parts, strict=True))[:3]
    )
    novelty = torch.cat([part[3] for part in parts if part[3] is not None]) if rate else None
    prediction = Prediction(
        labels=[state.classes[i] for i in probabilities.argmax(1).tolist()],
        probabilities=probabilities,
        classes=state.classes,
        tasks=[state.tasks[i].name for i in tasks.tolist()],
        adapters=state.gate[tasks],
        scores=scores,
        novelty=novelty,
        unknown=None if novelty is None or rate is None else novelty <= rate,
    )
    return prediction if top_k is None else replace(prediction, top_k=prediction.top(top_k))


def novelty(
    state: ModelState, backbone: Backbone, images: ImagesLike, progress: Progress = SILENT
) -> Tensor:
    """Return p-values (n,) of the hypothesis that an image belongs to a learned task."""
    _require_tasks(state)
    features = router_features(state, backbone, _require_images(images), progress)
    return state.router.novelty(features).cpu()


def router_features(
    state: ModelState,
    backbone: Backbone,
    images: ImageSequence,
    progress: Progress = SILENT,
    distributed: Distributed = SINGLE_PROCESS,
) -> Tensor:
    """Return what the router reads of images; depends on the feature adapter only.

    Each process computes a share, so all of them must call this.
    """
    with progress.track("routing", len(images)) as step:

        def read(index: Tensor) -> Tensor:
            features, _ = _encode(state, backbone, images[index])
            step(len(index))
            return features

        return distributed.rows(batches(len(images)), read)


@torch.inference_mode()
def adapter_logits(
    state: ModelState,
    backbone: Backbone,
    images: ImageSequence,
    adapter: int,
    distributed: Distributed = SINGLE_PROCESS,
) -> Tensor:
    """Return the logits (n, classes of the adapter) of images under one adapter.

    Each process computes a share, so all of them must call this.
    """
    head, weights = state.heads[adapter], state.adapters[adapter]
    tokens = TokenCache(backbone, images, state.settings.first_layer)

    def run(index: Tensor) -> Tensor:
        last = backbone.finish(tokens[index], start=weights.first_layer, adapters=weights.active())
        return head.logits(backbone, last)

    return distributed.rows(batches(len(images)), run)[:, head.columns].cpu()


def combined(
    state: ModelState,
    probabilities: Tensor,
    logits: Tensor | None,
    adapters: Tensor,
    hard_routing: bool,
) -> Tensor:
    """Combine the probabilities of the chosen adapters with the router's logits, if it has any."""
    if logits is None:
        return probabilities
    return combine(probabilities, logits, state.router_columns, adapters, hard_routing)


def layers_run(state: ModelState, depth: int) -> int:
    """Return the number of layers that one image runs through, for a backbone of some depth."""
    settings = state.settings
    if state.single_pass:
        return depth
    views = 2 if settings.router.flip else 1
    return views * settings.router.layers[-1] + depth - settings.first_layer


def _route(
    state: ModelState, backbone: Backbone, images: ImageSequence, needs_novelty: bool
) -> Iterator[_Routed]:
    for index in batches(len(images)):
        features, tokens = _encode(state, backbone, images[index])
        scores, logits = state.router.scores_and_logits(features)
        p_values = state.router.novelty(features).cpu() if needs_novelty else None
        yield _Routed(tokens, scores, logits, p_values, choose_tasks(scores))


def _regroup(
    routed: Iterable[_Routed], groups: Iterable[Hashable] | Tensor, count: int
) -> Iterator[_Routed]:
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


def _encode(state: ModelState, backbone: Backbone, images: Images) -> tuple[Tensor, Tensor]:
    first_layer = state.settings.first_layer
    features, tokens = encode(backbone, state.router, state.feature_adapter, first_layer, images)
    return _require_finite(features, "features of the router"), tokens


@torch.inference_mode()
def _adapt(state: ModelState, backbone: Backbone, tokens: Tensor, adapters: Tensor) -> Tensor:
    """Return class probabilities (n, classes), each sample under its own adapter."""
    active = state.adapters.mixed(adapters)
    tokens = tokens.to(backbone.device)
    last = backbone.finish(tokens, start=state.settings.first_layer, adapters=active)
    probabilities = state.stacked_heads.probabilities(backbone, last, adapters).cpu()
    return _require_finite(probabilities, "probabilities")


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
