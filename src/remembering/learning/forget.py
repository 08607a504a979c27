"""Remove a task from a state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remembering.state import ModelState, TaskRecord


@dataclass(frozen=True)
class Forgotten:
    """What `forget` removed.

    Attributes:
        task: The task.
        shared_with: Names of the tasks that share its adapter, which was therefore kept. Empty if
            the adapter was removed.
        replay_images: Number of replay images that were removed.
    """

    task: TaskRecord
    shared_with: tuple[str, ...]
    replay_images: int


def forget(state: ModelState, name: str) -> tuple[ModelState, Forgotten]:
    """Remove a task: its expert, its replay images, and its adapter unless other tasks share it.

    The other tasks answer as before. Shared parts remain while another task needs them: an adapter
    that serves several tasks, the feature adapter, and the covariance of the Gaussians.
    """
    task = state.task(name)
    rest = tuple(record for record in state.tasks if record is not task)
    shared_with = tuple(record.name for record in rest if record.adapter == task.adapter)
    adapters, memories = state.adapters, dict(state.memories)
    heads, classifiers, domains = dict(state.heads), dict(state.classifiers), dict(state.domains)
    references = dict(state.references)
    if not shared_with:
        adapters = adapters.without(task.adapter)
        for parts in (heads, classifiers, domains, references):
            parts.pop(task.adapter, None)
    elif task.adapter in classifiers:
        classifiers[task.adapter] = classifiers[task.adapter].without_expert(task.number)
        if reference := references.get(task.adapter):
            rest_of = reference.classifier.without_expert(task.number)
            references[task.adapter] = replace(reference, classifier=rest_of)
    memory = memories.pop(task.number, None)
    after = replace(
        state,
        router=state.router.without_expert(task.number),
        tasks=rest,
        adapters=adapters,
        heads=heads,
        classifiers=classifiers,
        domains=domains,
        references=references,
        memories=memories,
    )
    return after, Forgotten(task, shared_with, len(memory.labels) if memory else 0)
