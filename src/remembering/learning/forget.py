"""Remove a task from a state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from remembering.routing.domain import Domain, task_moments
from remembering.routing.share import Parts
from remembering.state import ModelState, TaskRecord


@dataclass(frozen=True)
class Forgotten:
    """What `forget` removed, and what remains.

    Attributes:
        task: The task.
        shared_with: Names of the tasks that share its adapter, which was therefore kept. Empty if
            the adapter was removed.
        replay_images: Number of replay images that were removed.
        exact: Whether the shared statistics are now those of the other tasks alone, up to rounding.
            If not, they were scaled down (`exact_forgetting`).
        remedy: What removes the influence of the task on the weights of the shared adapter. None:
            there is none, because the adapter was not trained on the task. consolidate:
            `consolidate` retrains the adapter from weights that were not trained on the task.
            relearn: forget the tasks in `shared_with`, too, and learn them again.
    """

    task: TaskRecord
    shared_with: tuple[str, ...]
    replay_images: int
    exact: bool = True
    remedy: Literal["consolidate", "relearn"] | None = None


def forget(state: ModelState, name: str) -> tuple[ModelState, Forgotten]:
    """Remove a task: its statistics, its replay images, and its adapter unless it is shared.

    With the task's share (`exact_forgetting`), the statistics are as if the task had never been
    learned, up to rounding, except for two: the novelties that classes of later tasks had when they
    were new, and after a consolidation, until the next one, the statistics carried to the new
    adapter. Without it, the shared statistics are scaled down in proportion to the images.
    """
    task = state.task(name)
    rest = tuple(record for record in state.tasks if record is not task)
    shared_with = tuple(record.name for record in rest if record.adapter == task.adapter)
    share = state.shares.get(task.number)
    parts: Parts = share.parts if share else {}
    adapters, memories, shares = state.adapters, dict(state.memories), dict(state.shares)
    heads, classifiers, domains = dict(state.heads), dict(state.classifiers), dict(state.domains)
    references = dict(state.references)
    exact = not rest or not state.router.shared or "router" in parts
    if not shared_with:
        adapters = adapters.without(task.adapter)
        for mapping in (heads, classifiers, domains, references):
            mapping.pop(task.adapter, None)
    elif task.adapter in heads:
        left = {
            label for record in rest if record.adapter == task.adapter for label in record.classes
        }
        heads[task.adapter] = heads[task.adapter].restricted(left)
    else:
        own, carried = parts.get("classifier"), classifiers[task.adapter]
        exact = exact and {*parts} == {"router", "classifier"}
        if reference := references.get(task.adapter):
            rest_of = reference.classifier.without_expert(task.number, own)
            references[task.adapter] = replace(reference, classifier=rest_of)
            own = None  # the carried statistics are approximate
        classifiers[task.adapter] = carried.without_expert(task.number, own)
        domains[task.adapter] = _without_domain(state, task, parts)
    shares.pop(task.number, None)
    memory = memories.pop(task.number, None)
    after = replace(
        state,
        router=state.router.without_expert(task.number, parts.get("router")),
        tasks=rest,
        adapters=adapters,
        heads=heads,
        classifiers=classifiers,
        domains=domains,
        references=references,
        memories=memories,
        shares=shares,
    )
    images = len(memory.labels) if memory else 0
    return after, Forgotten(task, shared_with, images, exact, _remedy(state, after, task))


def first_reference(state: ModelState, task: TaskRecord) -> int:
    """Return the position of a task's first class among the references of its domain."""
    served = state.served_by(task.adapter)
    return sum(len(record.classes) for record in served[: served.index(task)])


def _without_domain(state: ModelState, task: TaskRecord, parts: Parts) -> Domain:
    """Return the domain of the task's adapter without the task."""
    start = first_reference(state, task)
    classes = range(start, start + len(task.classes))
    moments = None
    if "router" in parts:
        moments = task_moments(state.router.experts[task.number], parts["router"])
    return state.domains[task.adapter].without(classes, task.images, moments)


def _remedy(
    before: ModelState, after: ModelState, task: TaskRecord
) -> Literal["consolidate", "relearn"] | None:
    """Return what removes the influence of a task on the weights of the adapter that it shared."""
    others = after.served_by(task.adapter)
    if not others:
        return None
    if before.settings.classifier.kind == "head" or task.number == task.adapter:
        return "relearn"  # its training data, also of the reference adapter
    if task.adapter not in before.references:
        return None
    kept = len(others) > 1 and all(record.number in after.memories for record in others)
    return "consolidate" if kept else "relearn"
