"""Rivals on the same backbone: one file a method, one contract, one registry."""

from remembering.baselines.base import Baseline
from remembering.baselines.finetune import FineTuning
from remembering.baselines.joint import Joint

BASELINES: dict[str, type[Baseline]] = {
    "finetune": FineTuning,
    "joint": Joint,
}

__all__ = ["BASELINES", "Baseline"]
