"""An answer in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remembering.data.columns import Label


def explain(
    label: Label,
    task: str,
    probabilities: Mapping[Label, float],
    task_classes: Mapping[str, tuple[Label, ...]],
    p_value: float | None,
    unknown: bool | None,
    k: int,
    neighbors: Sequence[Label] = (),
) -> str:
    """Explain the answer to one image, one sentence per line.

    Args:
        label: The answer.
        task: The task of the answer.
        probabilities: Probability of each label.
        task_classes: Labels of each learned task.
        p_value: p-value of the hypothesis that the image belongs to a learned task.
        unknown: Whether it was flagged as unknown.
        k: Number of candidates to name.
        neighbors: Labels of the most similar replay images.

    >>> tasks = {"pets": ("cat", "dog"), "cars": ("bus",)}
    >>> text = explain("cat", "pets", {"cat": 0.7, "dog": 0.1, "bus": 0.2}, tasks, 0.02, True, 3)
    >>> print(text)  # doctest: +NORMALIZE_WHITESPACE
    The most probable class is 'cat' (70.0 %).
    The next candidates are 'bus' (20.0 %), 'dog' (10.0 %).
    'cat' belongs to the task 'pets'; by task, probabilities sum to 'pets' 80.0 %, 'cars' 20.0 %.
    About 2.0 % of images of learned tasks are at least this unusual (p-value 0.02): flagged as
    unknown.
    """
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    others = [f"'{name}' ({_percent(p)})" for name, p in ranked if name != label and p > 0]
    lines = [f"The most probable class is '{label}' ({_percent(probabilities[label])})."]
    if others[: k - 1]:
        lines.append(f"The next candidates are {', '.join(others[: k - 1])}.")
    chosen = f"'{label}' belongs to the task '{task}'"
    shares = _task_shares(probabilities, task, task_classes)
    if len(shares) > 1:
        largest = sorted(shares.items(), key=lambda share: -share[1])[:k]
        named = ", ".join(f"'{name}' {_percent(share)}" for name, share in largest)
        chosen += f"; by task, probabilities sum to {named}"
    lines.append(f"{chosen}.")
    if neighbors:
        named = ", ".join(f"'{name}'" for name in neighbors)
        lines.append(f"The most similar replay images show {named}.")
    if p_value is not None:
        lines.append(
            f"About {_percent(p_value)} of images of learned tasks are at least this unusual "
            f"(p-value {p_value:.2g}): {'' if unknown else 'not '}flagged as unknown."
        )
    return "\n".join(lines)


def _task_shares(
    probabilities: Mapping[Label, float], task: str, task_classes: Mapping[str, tuple[Label, ...]]
) -> dict[str, float]:
    """Sum the probabilities of each task's labels.

    A label that recurs in several tasks counts for the chosen one, or for the first.
    """
    shares = dict.fromkeys(task_classes, 0.0)
    order = sorted(task_classes, key=lambda name: name != task)
    for label, probability in probabilities.items():
        owner = next((name for name in order if label in task_classes[name]), None)
        if owner is not None:
            shares[owner] += probability
    return shares


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
