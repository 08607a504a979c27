"""p-values: uniform for known images, interpolated between calibration scores."""

from __future__ import annotations

import pytest
import torch

from remembering.routing.calibration import p_values


@pytest.mark.parametrize("count", [19, 33, 128])
@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_false_alarms_have_the_requested_rate_on_average(count: int, rate: float) -> None:
    rng = torch.Generator().manual_seed(count)
    flagged = []
    for _ in range(4000):
        known = torch.randn(count, generator=rng, dtype=torch.float64).exp().sort().values
        fresh = torch.randn(20, generator=rng, dtype=torch.float64).exp()
        flagged.append((p_values(fresh, known) <= rate).double().mean())
    assert torch.stack(flagged).mean() == pytest.approx(rate, abs=0.006)


def test_between_two_calibration_scores_the_p_value_is_interpolated() -> None:
    known = torch.arange(19, dtype=torch.float64)
    scores = torch.tensor([-1, 0, 0.25, 17, 17.5, 18, 99], dtype=torch.float64)
    expected = torch.tensor([20, 19, 18.75, 2, 1.5, 1, 1], dtype=torch.float64) / 20
    torch.testing.assert_close(p_values(scores, known), expected)


def test_equal_calibration_scores_count_all() -> None:
    known = torch.tensor([0.0, *[5.0] * 18, 7.0], dtype=torch.float64)
    found = p_values(torch.tensor([5.0], dtype=torch.float64), known)
    assert found.item() == pytest.approx(19 / 21)


def test_without_calibration_scores_nothing_is_novel() -> None:
    assert p_values(torch.tensor([9.0]), torch.zeros(0)).tolist() == [1.0]
