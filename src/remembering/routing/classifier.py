"""The classifier of an adapter: class Gaussians on the features of that adapter."""

from __future__ import annotations

from functools import cached_property

import torch

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
