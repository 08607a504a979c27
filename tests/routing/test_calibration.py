"""p-values are valid: images like the calibration images are flagged at most at the given rate."""

from __future__ import annotations

import pytest
import torch

from remembering.routing.calibration import MIN_CONFORMAL, p_values


@pytest.mark.parametrize("count", [MIN_CONFORMAL, 60, 128])
@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_false_alarms_do_not_exceed_the_rate(count: int, rate: float) -> None:
    rng = torch.Generator().manual_seed(count)
    flagged = []
    for _ in range(2000):
        known = torch.randn(count, generator=rng, dtype=torch.float64).exp().sort().values
        fresh = torch.randn(20, generator=rng, dtype=torch.float64).exp()
        flagged.append((p_values(fresh, known) <= rate).double().mean())
    expected = int(rate * (count + 1)) / (count + 1)
    assert torch.stack(flagged).mean() == pytest.approx(expected, abs=0.006)


def test_equal_calibration_scores_count_all() -> None:
    known = torch.tensor([0.0, *[5.0] * 38, 7.0], dtype=torch.float64)
    found = p_values(torch.tensor([5.0], dtype=torch.float64), known)
    assert found.item() == pytest.approx(40 / 41)


def test_without_calibration_scores_nothing_is_novel() -> None:
    assert p_values(torch.tensor([9.0]), torch.zeros(0)).tolist() == [1.0]
