"""Sequential fine-tuning of one adapter: the lower bound, without protection from forgetting."""

from __future__ import annotations

from remembering.baselines.single_adapter import SingleAdapter


class FineTuning(SingleAdapter):
    """Train one adapter and one growing head on each task in turn, without further measures.

    ℓ = cross entropy over all classes seen so far, on the images of the current task only.
    """

    name = "finetune"
    title = "sequential fine-tuning"
    reference = "McCloskey and Cohen (1989), Catastrophic interference in connectionist networks"
    stores = "one adapter and one head"
