"""The Gaussian router against plain formulas."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from remembering.config import ClassifierSettings, RouterSettings
from remembering.errors import RememberingError
from remembering.routing import class_gaussians, gaussian
from remembering.routing.class_gaussians import TEMPERATURES, ClassGaussians
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.gaussian import GaussianRouter


def data(task: int, classes: int, per_class: int = 8, dim: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(task)
    targets = torch.arange(classes).repeat_interleave(per_class)
    means = 3 * torch.randn(classes, dim, generator=rng)
    return means[targets] + torch.randn(len(targets), dim, generator=rng), targets


def learned(*tasks: tuple[Tensor, Tensor]) -> GaussianRouter:
    router = GaussianRouter(RouterSettings())
    for number, (x, y) in enumerate(tasks):
        expert = router.fit(x, y, torch.Generator().manual_seed(0))
        router = router.with_expert(number, expert)
    return router


def learned_from_all(*tasks: tuple[Tensor, Tensor]) -> GaussianRouter:
    """Without calibration images, so that the sums are those of all images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaussian, "CALIBRATION_SHARE", 10**9)
        patch.setattr(gaussian, "CALIBRATION_MIN", 0)
        return learned(*tasks)


def covariance(tasks: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The shrunk covariance, image by image."""
    c = RouterSettings().shrinkage
    residuals = [
        (x[y == k].double() - x[y == k].double().mean(0)) for x, y in tasks for k in y.unique()
    ]
    r = torch.cat(residuals)
    n, dim = r.shape
    scatter = r.mT @ r
    return (scatter + c * dim * (scatter.diagonal() / n).diag()) / (n + c * dim)


@settings(max_examples=25)
@given(classes=st.lists(st.integers(2, 5), min_size=1, max_size=4))
def test_logits_are_those_of_gaussians_with_one_covariance(classes: list[int]) -> None:
    tasks = [data(i, c) for i, c in enumerate(classes)]
    x = torch.randn(7, 5)
    means = torch.stack([a[b == c].double().mean(0) for a, b in tasks for c in b.unique()])
    gaussians = [torch.distributions.MultivariateNormal(mean, covariance(tasks)) for mean in means]
    router = learned_from_all(*tasks)
    temperature = router.gaussians.temperature
    densities = torch.stack([g.log_prob(x.double()) for g in gaussians], dim=1)
    expected = (densities / temperature).log_softmax(1)
    found = router.class_logits(x).log_softmax(1)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=5e-2)  # scatter in half precision


def test_the_order_of_tasks_and_of_images_does_not_matter() -> None:
    tasks = [data(i, 3) for i in range(3)]
    x = torch.randn(9, 5)
    mixed = [(a[o], b[o]) for a, b in tasks for o in [torch.randperm(len(a))]]
    expected = learned_from_all(*tasks)._covariance.factor
    for other in (learned_from_all(*mixed), learned_from_all(*tasks[::-1])):
        assert other.scores(x).shape == (9, 3)
        torch.testing.assert_close(other._covariance.factor, expected, rtol=1e-2, atol=1e-3)


def test_calibration_images_are_not_part_of_the_sums() -> None:
    x, y = data(0, 3, per_class=40)
    router = learned((x, y))
    expert = router.experts[0]
    held_out = len(expert["calibration_targets"])
    assert held_out == 20
    assert float(expert["counts"].sum()) == 120 - held_out
    total = expert["sums"].sum(0) + expert["calibration_features"].double().sum(0)
    torch.testing.assert_close(total, x.double().sum(0), rtol=1e-2, atol=0.1)


def test_every_class_keeps_two_images() -> None:
    x, y = data(0, 4, per_class=2)
    assert learned((x, y)).experts[0]["counts"].tolist() == [2.0] * 4


@settings(max_examples=25)
@given(
    classes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    spread=st.sampled_from([0.1, 1.0, 10.0]),
    start=st.sampled_from(TEMPERATURES),
)
def test_the_way_down_finds_the_best_of_all_temperatures(
    classes: list[int], spread: float, start: float
) -> None:
    gaussians = learned(
        *((spread * x, y) for x, y in (data(i, c) for i, c in enumerate(classes)))
    ).gaussians
    _, own, distances = gaussians._calibration
    losses = [float(F.cross_entropy(-distances / (2 * t), own)) for t in TEMPERATURES]
    gaussians.temperature = start
    assert gaussians.best_temperature() == TEMPERATURES[losses.index(min(losses))]


def test_many_tasks_are_not_compared_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of the first; then rarely enough that a task costs the same, but never too late."""
    fits = []
    monkeypatch.setattr(gaussian, "REFIT_ALWAYS", 40)
    real = ClassGaussians.best_temperature

    def counted(fitted: ClassGaussians) -> float:
        fits.append(len(fitted.experts))
        return real(fitted)

    monkeypatch.setattr(class_gaussians.ClassGaussians, "best_temperature", counted)
    router = learned(*(data(i, 2, per_class=3) for i in range(200)))
    assert fits[:40] == list(range(1, 41))
    assert len(fits) < 40 + 16 * math.log2(200 / 40) * 2
    assert all(b - a <= 1 + b / 16 for a, b in itertools.pairwise(fits))
    assert "temperature" in router.shared
    assert router.gaussians.temperature == float(router.shared["temperature"])


def test_calibration_samples_from_very_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [data(i, 2, per_class=24) for i in range(30)]
    router = learned(*tasks)
    x, own, distances = router.gaussians._calibration
    assert x.shape == (30 * 8, 5)  # a sixth of each task
    assert distances.shape == (30 * 8, 60)
    monkeypatch.setattr(gaussian, "CALIBRATION_MAX", 40)
    router = GaussianRouter(router.settings, router.experts, router.shared)
    x, own, distances = router.gaussians._calibration
    assert len(x) == len(own) == 40  # four of every third task
    assert distances.shape == (40, 60)
    assert (own // 2).unique().tolist() == list(range(0, 30, 3))
    assert (distances.argmin(1) == own).double().mean() > 0.5


def test_false_alarms_come_at_the_requested_rate() -> None:
    rng = torch.Generator().manual_seed(0)
    dim, means = 30, 2 * torch.randn(6, 30, generator=rng)

    def draw(labels: Tensor) -> Tensor:
        return means[labels] + torch.randn(len(labels), dim, generator=rng)

    y = torch.arange(3).repeat_interleave(200)
    router = learned((draw(y), y), (draw(y + 3), y))
    fresh = torch.arange(6).repeat_interleave(200)
    for rate in (0.05, 0.2):
        alarms = (router.novelty(draw(fresh)) <= rate).float().mean()
        assert abs(alarms - rate) < 0.06


def test_features_that_never_vary_do_no_harm() -> None:
    x, y = data(0, 3)
    constant = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    router = learned((constant, y))
    assert router.class_logits(constant).isfinite().all()
    assert (router.class_logits(constant).argmax(1) == y).float().mean() > 0.9


def skewed(task: int, per_class: int = 360) -> tuple[Tensor, Tensor]:
    """Classes that differ in spread as well, which one covariance cannot say."""
    rng = torch.Generator().manual_seed(task)
    targets = torch.arange(2).repeat_interleave(per_class)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0]]) + torch.tensor([0.0, 2.5]) * (task % 10)
    spread = torch.tensor([0.3, 1.5])[targets, None]
    return centres[targets] + spread * torch.randn(len(targets), 2, generator=rng), targets


def corrected(replay: int) -> GaussianClassifier:
    router = GaussianClassifier(ClassifierSettings(replay=replay))
    for number in range(4):
        x, y = skewed(number)
        expert = router.fit(x, y, torch.Generator().manual_seed(0))
        router = router.with_expert(number, expert)
    return router


def test_the_logit_correction_improves_boundaries() -> None:
    test = [skewed(10 * (i + 1) + i, per_class=400) for i in range(4)]
    right = []
    for replay in (0, 120):
        router = corrected(replay)
        hits = [router.class_logits(x).argmax(1) == y + 2 * i for i, (x, y) in enumerate(test)]
        right.append(float(torch.cat(hits).float().mean()))
    plain, better = right
    assert better > plain + 0.01


def test_kept_vectors_are_as_many_as_asked_for() -> None:
    kept = [len(expert["calibration_features"]) for expert in corrected(100).experts.values()]
    assert kept == [120, 100, 100, 100], "at least as many as calibration needs"
    assert [len(e["calibration_features"]) for e in corrected(0).experts.values()] == [
        120,
        20,
        20,
        20,
    ]


def test_removing_a_task_keeps_the_correction_of_the_others() -> None:
    router, (x, _) = corrected(120), skewed(7)
    before = router.class_logits(x)
    router = router.without_expert(1)
    torch.testing.assert_close(router.class_logits(x), before[:, [0, 1, 4, 5, 6, 7]])
    copy = GaussianClassifier(router.settings, router.experts, router.shared)
    assert torch.equal(copy.class_logits(x), router.class_logits(x))


def test_only_gaussians_have_a_logit_correction() -> None:
    with pytest.raises(
        RememberingError, match=r"classifier\.replay and classifier\.layers require"
    ):
        ClassifierSettings(kind="head", replay=10)
