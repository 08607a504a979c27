"""Rename tasks and classes. Answers do not change otherwise."""

from __future__ import annotations

from dataclasses import replace

from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.state import ModelState


def rename_task(state: ModelState, name: str, new_name: str) -> ModelState:
    """Return the state with another name for a task.

    Raises:
        RememberingError: If there is no such task, or the new name is taken or no string.
    """
    record = state.task(name)
    if not isinstance(new_name, str):
        raise RememberingError(f"the name of a task is {new_name!r}; pass a string")
    if new_name != name and any(task.name == new_name for task in state.tasks):
        raise RememberingError(f"a task named '{new_name}' already exists; choose another name")
    tasks = tuple(replace(t, name=new_name) if t is record else t for t in state.tasks)
    return replace(state, tasks=tasks)


def rename_class(state: ModelState, task: str, label: Label, new_label: Label) -> ModelState:
    """Return the state with another label for a class of a task.

    The label keeps its position among the classes of the task, to which the router refers. A label
    of another task is left alone, even if it is the same; it may also be used as the new label,
    except within one head.

    Raises:
        RememberingError: If the task has no such class, the new label is not of the same type or
            already taken, or another task uses the same label of the same head.
    """
    record = state.task(task)
    if label not in record.classes:
        known = ", ".join(f"'{name}'" for name in record.classes)
        raise RememberingError(f"task '{task}' has no class '{label}'; its classes are {known}")
    if type(new_label) is not type(label):
        raise RememberingError(
            f"the labels of the model are of type {type(label).__name__}; "
            f"{new_label!r} is a {type(new_label).__name__}"
        )
    if new_label == label:
        return state
    heads = dict(state.heads)
    taken = record.classes if record.adapter not in heads else heads[record.adapter].classes
    if new_label in taken:
        raise RememberingError(
            f"adapter {record.adapter} of task '{task}' already has a class '{new_label}'; choose "
            "another label"
        )
    sharing = [t.name for t in state.served_by(record.adapter) if label in t.classes]
    if record.adapter in heads and sharing != [task]:
        others = ", ".join(f"'{name}'" for name in sharing if name != task)
        raise RememberingError(
            f"class '{label}' of task '{task}' shares its output of adapter {record.adapter} with "
            f"{others}; it cannot be renamed for one task alone"
        )

    def renamed(labels: tuple[Label, ...]) -> tuple[Label, ...]:
        return tuple(new_label if name == label else name for name in labels)

    memories = dict(state.memories)
    if record.number in memories:
        memory = memories[record.number]
        # With images in memory: their file also stores the labels.
        memories[record.number] = replace(
            memory, source=memory.images, labels=renamed(memory.labels)
        )
    if head := heads.get(record.adapter):
        heads[record.adapter] = replace(head, classes=renamed(head.classes))
    return replace(
        state,
        tasks=tuple(
            replace(t, classes=renamed(t.classes)) if t is record else t for t in state.tasks
        ),
        heads=heads,
        memories=memories,
    )
