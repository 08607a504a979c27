"""p-values of an exported graph are those of the library."""

from __future__ import annotations

import pytest
import torch

from remembering.export.p_values import PValues
from remembering.routing.calibration import p_values

COUNTS = (0, 1, 2, 3, 12, 19, 20, 200)


def calibration(counts: tuple[int, ...]) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(n, generator=rng, dtype=torch.float64).sort().values for n in counts]


@pytest.mark.parametrize("min_spread", [1e-12, 2.0])
@pytest.mark.parametrize("counts", [COUNTS, (20, 200), (2, 19)])
def test_few_and_many_calibration_scores(counts: tuple[int, ...], min_spread: float) -> None:
    sets = calibration(counts)
    scores = torch.linspace(-40, 40, 161, dtype=torch.float64)
    found = PValues(sets, min_spread)(scores[:, None].expand(-1, len(sets)))
    expected = torch.stack([p_values(scores, known, min_spread) for known in sets], dim=1)
    # Relative: also p-values of one in a million are right.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_step() -> None:
    assert PValues(calibration((2, 19))).step == 0
    assert PValues(calibration((2, 20, 99))).step == pytest.approx(1 / 21)
