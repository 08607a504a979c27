"""The novelty test of a task: new classes of a known domain join it, other images do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ttest_ind
from torch import Tensor

from remembering.routing.domain import SIGNIFICANCE, Domain
from remembering.routing.symmetric import restore


def task(seed: int, shift: float = 0.0, classes: int = 6, dim: int = 12) -> tuple[Tensor, Tensor]:
    """Classes scattered about a centre; another `shift` is another domain."""
    rng = torch.Generator().manual_seed(seed)
    targets = torch.arange(classes).repeat_interleave(20)
    centres = shift + 2 * torch.randn(classes, dim, generator=rng)
    return centres[targets] + torch.randn(len(targets), dim, generator=rng), targets


def test_the_moments_are_those_of_all_images_together() -> None:
    (a, y), (b, z) = task(0), task(1, 3.0)
    domain = Domain.of(a, y)
    joined = domain.joined(b, domain.novelties(b, z))
    both = torch.cat([a, b]).double()
    residual = both - both.mean(0)
    torch.testing.assert_close(joined.mean, both.mean(0))
    scatter = restore(vars(joined))
    assert (scatter - residual.mT @ residual).norm() / scatter.norm() < 1e-3, "up to half precision"
    assert float(joined.count) == len(both)
    assert len(joined.references) == 12


def test_the_p_value_is_that_of_a_one_sided_t_test() -> None:
    domain = Domain.of(*task(0))
    novelties = domain.novelties(*task(1))
    expected = ttest_ind(
        np.asarray(novelties), np.asarray(domain.references), alternative="greater"
    ).pvalue
    assert domain.p_value(novelties) == pytest.approx(float(expected))


def test_classes_of_the_same_domain_join_and_others_do_not() -> None:
    domain = Domain.of(*task(0))
    for seed in range(1, 8):
        x, y = task(seed)
        novelties = domain.novelties(x, y)
        assert domain.p_value(novelties) >= SIGNIFICANCE, f"task {seed} is of the same domain"
        domain = domain.joined(x, novelties)
    assert domain.p_value(domain.novelties(*task(9, shift=8.0))) < SIGNIFICANCE
