"""The classifier of an adapter: class Gaussians on the features of that adapter."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from remembering.config import ClassifierSettings
from remembering.routing.gaussian import GaussianRouter


class GaussianClassifier(GaussianRouter):
    """The classes of all tasks that an adapter serves, in the feature space of that adapter.

    The same running sums as those of a `GaussianRouter`; here the columns of `class_logits` are the
    answer. Images whose margin is below `margin_threshold` are classified by a second view.
    """

    settings: ClassifierSettings
    calibration = (128, 20)

    @cached_property
    def margin_threshold(self) -> float:
        """The margin below which a second view is used: a quantile of held-out margins."""
        share, margins = self.settings.second_view, self.gaussians.calibration_margins
        if share in (0, 1) or not len(margins):
            return float("inf") if share == 1 else float("-inf")
        return float(torch.quantile(margins, share))

    @property
    def uses_flip(self) -> bool:
        """Whether horizontally flipped images are further samples of the classes."""
        return int(self.shared.get("views", 1)) > 1

    def logits_with_flips(self, features: Tensor, flipped: Callable[[Tensor], Tensor]) -> Tensor:
        """Return `class_logits` on the CPU; those with small margins are averaged with the flip's.

        Args:
            features: (n, features).
            flipped: Returns the features of the flipped images at some rows.
        """
        logits = self.class_logits(features).cpu()
        small = (_margins(logits) < self.margin_threshold).nonzero().flatten()
        if self.uses_flip and len(small):
            logits[small] = (logits[small] + self.class_logits(flipped(small)).cpu()) / 2
        return logits


def _margins(logits: Tensor) -> Tensor:
    """Return the difference between the two largest logits, (n,)."""
    if logits.shape[1] < 2:
        return logits.new_full((len(logits),), torch.inf)
    top = logits.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]
