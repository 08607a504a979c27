"""Combine two states that were learned on the same backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TypeVar

from remembering.errors import RememberingError
from remembering.routing.editing import merged
from remembering.routing.gaussian import GaussianRouter
from remembering.state import ModelState

T = TypeVar("T")


def merge(state: ModelState, other: ModelState) -> ModelState:
    """Return a state with the tasks of both; no adapter is trained.

    Tasks and adapters of `other` get new numbers. Adapters are not shared between the two: each
    task keeps the one that it was learned with.

    Args:
        state: What was learned.
        other: What another model has learned, on the same backbone with the same settings.

    Raises:
        RememberingError: If settings, labels or names do not fit, or there would be too many
            adapters.
    """
    _check(state, other)
    offset = state.next_number
    adapters = state.adapters
    for number, entry in other.adapters.entries.items():
        adapters = adapters.with_adapter(number + offset, entry)
    router, added = state.router, other.router.renumbered(offset)
    if isinstance(router, GaussianRouter) and isinstance(added, GaussianRouter):
        router = merged(router, added)
    else:
        router = type(router)(router.settings, {**router.experts, **added.experts}, router.shared)
    classifiers = {n + offset: c.renumbered(offset) for n, c in other.classifiers.items()}
    references = {
        n + offset: replace(r, classifier=r.classifier.renumbered(offset))
        for n, r in other.references.items()
    }

    def both(ours: Mapping[int, T], theirs: Mapping[int, T]) -> dict[int, T]:
        return {**ours, **{number + offset: value for number, value in theirs.items()}}

    tasks = [replace(t, number=t.number + offset, adapter=t.adapter + offset) for t in other.tasks]
    return replace(
        state,
        router=router,
        tasks=(*state.tasks, *tasks),
        adapters=adapters,
        classifiers={**state.classifiers, **classifiers},
        references={**state.references, **references},
        next_number=offset + other.next_number,
        heads=both(state.heads, other.heads),
        domains=both(state.domains, other.domains),
        memories=both(state.memories, other.memories),
        shares=both(state.shares, other.shares),
    )


def _check(state: ModelState, other: ModelState) -> None:
    for item in fields(state.settings):
        ours, theirs = getattr(state.settings, item.name), getattr(other.settings, item.name)
        if ours != theirs:
            raise RememberingError(
                f"the models have different settings: {item.name} is {ours} and {theirs}; merge "
                "models that were created with the same settings"
            )
    if other.observed:
        raise RememberingError(
            f"{other.observed} observed images of the other model wait to be learned; call flush "
            "first"
        )
    clashes = sorted({task.name for task in state.tasks} & {task.name for task in other.tasks})
    if clashes:
        names = ", ".join(f"'{name}'" for name in clashes)
        raise RememberingError(f"both models have a task named {names}; rename one of them first")
    kinds = {type(label).__name__ for one in (state, other) for label in one.classes}
    if len(kinds) > 1:
        raise RememberingError(
            f"the models have labels of different types: {' and '.join(sorted(kinds))}"
        )
    capacity, total = state.settings.capacity, len(state.adapters) + len(other.adapters)
    if capacity is not None and total > capacity:
        raise RememberingError(
            f"the models have {total} adapters together, but the capacity is {capacity}"
        )
