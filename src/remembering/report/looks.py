"""One look per method and routing unit, the same in all figures."""

from __future__ import annotations

from remembering.experiments.spec import MODEL
from remembering.report.curves import Look
from remembering.report.figure import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILION

_DASHED, _DOTTED, _MIXED = (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5))
OURS = Look(BLUE, "o", "-", 2.6, bold=True)
ORACLE = Look(INK, "x", _DASHED, 1.4)
ABLATED = Look(GREY, "v", _DOTTED, 1.8)
_METHODS = {
    "ours": OURS,
    MODEL: OURS,
    "ours-replay": Look(BLUE, "^", _DASHED, 2.0),
    "ours-replay-50": Look(BLUE, "v", _DASHED, 2.0),
    "ours-first": Look(PURPLE, "P", _DASHED),
    "gaussian": Look(PURPLE, "D"),
    "ours-published": Look(VERMILION, "o"),
    "finetune": Look(GREY, "v"),
}
_OTHERS = [
    Look(colour, marker, dashes, 1.3)
    for dashes in ("-", _DASHED, _DOTTED, _MIXED)
    for colour, marker in ((ORANGE, "s"), (INK, "X"), (GREY, "p"), (PURPLE, "<"), (GREEN, ">"))
]


def method_look(method: str, unit: str = "sample", place: int = 0) -> Look:
    """Return the look of a method under a routing unit.

    Args:
        method: Name of the method.
        unit: Routing unit.
        place: Position among the methods of a figure; selects the look of one that has no own.
    """
    if unit != "sample":
        return Look(VERMILION, "s", _DASHED)
    if method.startswith("joint"):
        return Look(GREEN, "D", _DASHED if method == "joint" else "-")
    return _METHODS.get(method, _OTHERS[place % len(_OTHERS)])


def unit_look(unit: str, place: int = 0) -> Look:
    """Return the look of the model under a routing unit.

    Args:
        unit: Routing unit.
        place: Position among the units between single images and whole tasks.
    """
    if unit == "sample":
        return OURS
    if unit == "task":
        return Look(VERMILION, "s", "-", 2.0)
    return Look((ORANGE, PURPLE)[place % 2], "^D"[place % 2])
