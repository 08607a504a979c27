"""Replay images: nearest to the class centre or at random, shared out over the classes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remembering.learning.replay import draw, herd


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    size=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_takes_the_nearest_of_each_class(counts: list[int], size: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    targets = torch.cat([torch.full((n,), i) for i, n in enumerate(counts)])
    targets = targets[torch.randperm(len(targets), generator=rng)]
    latents = torch.randn(len(targets), 2, generator=rng)
    chosen = herd(latents, targets, size)
    assert len(chosen.unique()) == len(chosen) <= size
    for i, n in enumerate(counts):
        share = size // len(counts) + (i < size % len(counts))
        own = chosen[targets[chosen] == i]
        assert len(own) == min(n, share)
        members = latents[targets == i]
        distance = (members - members.mean(0)).norm(dim=1).sort().values
        taken = (latents[own] - members.mean(0)).norm(dim=1).sort().values
        torch.testing.assert_close(taken, distance[: len(own)])


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    size=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_random_images_are_shared_out_without_excluded_ones(
    counts: list[int], size: int, seed: int
) -> None:
    targets = torch.cat([torch.full((n,), i) for i, n in enumerate(counts)])
    excluded = torch.arange(0, len(targets), 3)
    chosen = draw(targets, size, excluded, torch.Generator().manual_seed(seed))
    assert len(chosen.unique()) == len(chosen) <= size
    assert not torch.isin(chosen, excluded).any()
    allowed = ~torch.isin(torch.arange(len(targets)), excluded)
    for i in range(len(counts)):
        share = size // len(counts) + (i < size % len(counts))
        available = int((allowed & (targets == i)).sum())
        assert int((targets[chosen] == i).sum()) == min(available, share)


@pytest.mark.parametrize("rows", [1, 3, 10])
def test_a_few_at_a_time_are_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    latents, targets = torch.randn(40, 5, generator=rng), torch.arange(40) % 2
    whole = herd(latents, targets, 12)
    monkeypatch.setattr("remembering.runtime.mmap_buffer.CHUNK_BYTES", rows * 8 * 5)
    assert torch.equal(herd(latents, targets, 12), whole)
