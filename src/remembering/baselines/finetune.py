"""Sequential fine-tuning of one adapter: the floor, which forgets."""

from __future__ import annotations

from remembering.baselines.base import SingleAdapter


class FineTuning(SingleAdapter):
    """One adapter and one growing head go on training on each task in turn, nothing else done.

    ℓ = cross entropy over all classes seen so far, on the images of the task alone.
    """

    name = "finetune"
    title = "sequential fine-tuning"
    reference = "McCloskey and Cohen (1989), Catastrophic interference in connectionist networks"
    stores = "one adapter and one head"
