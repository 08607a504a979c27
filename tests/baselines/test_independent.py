"""Classifiers of baselines, and ours, against scikit-learn on fixed inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.svm import LinearSVC
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, ranpac
from remembering.baselines.base import FeatureLearner
from remembering.baselines.fetril import fit_svm
from remembering.config import ClassifierSettings
from remembering.routing.classifier import GaussianClassifier

from .example import SETTINGS

CLASSES, DIM = 4, 12


def samples(per_class: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gaussian classes that overlap, with one correlated covariance."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(9))
    centres = 2 * torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(8))
    targets = torch.arange(CLASSES).repeat(per_class)
    return centres[targets] + torch.randn(len(targets), DIM, generator=rng) @ mix, targets


def empty(name: str, backbone: Backbone, **options: float) -> FeatureLearner:
    learner = BASELINES[name](backbone, SETTINGS, **options)
    assert isinstance(learner, FeatureLearner)
    learner.classes = tuple(range(CLASSES))
    return learner


def centred(scores: Tensor) -> Tensor:
    """Remove what all classes have in common."""
    scores = scores.double()
    return scores - scores.mean(1, keepdim=True)


def sklearn_scores(lda: LinearDiscriminantAnalysis, x: Tensor) -> Tensor:
    return centred(torch.from_numpy(lda.decision_function(x.double().numpy())))


def uniform() -> list[float]:
    return [1 / CLASSES] * CLASSES


def test_streaming_lda_classifies_as_scikit_learns_lda(backbone: Backbone) -> None:
    """The same scores from the same means and covariance."""
    x, y = samples(50)
    lda = LinearDiscriminantAnalysis(solver="lsqr", priors=uniform()).fit(x.double().numpy(), y)
    learner = empty("slda", backbone, shrinkage=0)
    learner.tensors = {
        "means": torch.from_numpy(lda.means_),
        "covariance": torch.from_numpy(lda.covariance_),
    }
    new, _ = samples(25, seed=1)
    torch.testing.assert_close(centred(learner.feature_scores(new)), sklearn_scores(lda, new))


def test_streaming_lda_estimates_what_scikit_learns_lda_does(backbone: Backbone) -> None:
    x, y = samples(1000)
    lda = LinearDiscriminantAnalysis(solver="lsqr").fit(x.double().numpy(), y)
    learner = empty("slda", backbone)
    for part in range(4):
        learner.learn_features(x[part::4], y[part::4])
    torch.testing.assert_close(learner.tensors["means"].double(), torch.from_numpy(lda.means_))
    expected = torch.from_numpy(lda.covariance_)
    error = (learner.tensors["covariance"].double() - expected).norm() / expected.norm()
    assert float(error) < 0.01


def test_streaming_lda_is_that_of_its_paper_image_by_image(backbone: Backbone) -> None:
    """Σ ← (t Σ + t / (t + 1) δ δᵀ) / (t + 1); the second part has a new class."""
    x, y = (part.double() if part.is_floating_point() else part for part in samples(10))
    parts = [y < 2, y >= 1]
    learner = empty("slda", backbone)
    means, counts = torch.zeros(CLASSES, DIM).double(), torch.zeros(CLASSES)
    covariance, seen = torch.zeros(DIM, DIM).double(), 0
    for rows in parts:
        learner.learn_features(x[rows], y[rows])
        for z, label in zip(x[rows], y[rows].tolist(), strict=True):
            delta = z - means[label]
            if counts[label]:
                update = seen / (seen + 1) * delta.outer(delta)
                covariance = (seen * covariance + update) / (seen + 1)
            means[label] = (counts[label] * means[label] + z) / (counts[label] + 1)
            counts[label] += 1
            seen += 1
    assert learner.tensors["counts"].tolist() == counts.tolist()
    torch.testing.assert_close(learner.tensors["means"].double(), means, rtol=1e-5, atol=1e-5)
    found = learner.tensors["covariance"].double()
    torch.testing.assert_close(found, covariance, rtol=1e-5, atol=1e-5)


class Shrunk(EmpiricalCovariance):  # type: ignore[misc]
    """A covariance with the weight of `prior` samples on its diagonal."""

    def __init__(self, count: int, prior: float):
        super().__init__()
        self.count, self.prior = count, prior

    def fit(self, X: Any, y: Any = None) -> Shrunk:
        super().fit(X)
        diagonal = np.diag(np.diag(self.covariance_))
        total = self.count + self.prior
        self.covariance_ = (self.count * self.covariance_ + self.prior * diagonal) / total
        return self


@pytest.mark.parametrize("shrinkage", [0.5, 2.0])
def test_our_classifier_is_scikit_learns_lda(shrinkage: float) -> None:
    """The classes come in two tasks; correlations are kept in half precision."""
    x, y = samples(50)
    classifier = GaussianClassifier(ClassifierSettings(shrinkage=shrinkage, second_view=0))
    nothing = torch.zeros(0, dtype=torch.long)
    for number, rows in enumerate((y < 2, y >= 2)):
        targets = y[rows] - 2 * number
        expert = classifier.fit(x[rows], targets, torch.Generator(), held_out=nothing)
        classifier = classifier.with_expert(number, expert)
    estimator = Shrunk(len(x), shrinkage * DIM)
    lda = LinearDiscriminantAnalysis(
        solver="lsqr", priors=uniform(), covariance_estimator=estimator
    ).fit(x.double().numpy(), y)
    new, _ = samples(25, seed=1)
    found, expected = centred(classifier.class_logits(new)), sklearn_scores(lda, new)
    assert torch.equal(found.argmax(1), expected.argmax(1))
    assert float((found - expected).norm() / expected.norm()) < 0.005


def test_nearest_class_mean_has_scikit_learns_cosine_similarity(backbone: Backbone) -> None:
    x, y = samples(20)
    learner = empty("ncm", backbone)
    for classes, rows in ((2, y < 2), (4, y >= 2)):
        learner.classes = tuple(range(classes))
        learner.learn_features(x[rows], y[rows])
    means = np.stack([x[y == label].mean(0).numpy() for label in range(CLASSES)])
    expected = torch.from_numpy(cosine_similarity(x.numpy(), means))
    torch.testing.assert_close(learner.feature_scores(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("projection", [30, 400])
def test_ranpac_is_scikit_learns_ridge_regression(
    projection: int, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tasks, with fewer and with more random features than images."""
    monkeypatch.setattr(ranpac, "BLOCK", 64)  # several blocks
    x, y = samples(50)
    learner = empty("ranpac_frozen", backbone, projection=projection)
    for rows in (y < 2, y == 2, y == 3):
        learner.learn_features(x[rows], y[rows])
        learner.learned += 1
    assert len(learner.tensors["factor"]) == min(projection, len(x))
    hidden = (x @ learner.tensors["projection"]).relu().double().numpy()
    one_hot = np.eye(CLASSES)[y.numpy()]
    ridge = Ridge(alpha=learner.extra_state["ridge"], fit_intercept=False).fit(hidden, one_hot)
    new, _ = samples(25, seed=1)
    projected = (new @ learner.tensors["projection"]).relu().double().numpy()
    expected = torch.from_numpy(ridge.predict(projected))
    torch.testing.assert_close(learner.feature_scores(new), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("start", [1e-4, 1e4, 1e8])
def test_ranpac_selects_the_ridge_with_the_smallest_error_of_scikit_learn(start: float) -> None:
    (x, y), (new, true) = samples(10), samples(10, seed=1)
    projection = torch.randn(DIM, 60, generator=torch.Generator().manual_seed(0))
    one_hot, wanted = (torch.eye(CLASSES).double()[part] for part in (y, true))
    hidden, held_out = ((part @ projection).relu().double() for part in (x, new))
    errors = {}
    for value in ranpac.RIDGES:
        found = Ridge(alpha=value, fit_intercept=False).fit(hidden.numpy(), one_hot.numpy())
        errors[value] = float(np.square(found.predict(held_out.numpy()) - wanted.numpy()).mean())
    best = min(errors, key=errors.__getitem__)
    assert 1e-8 < best < 1e8
    kernel = ranpac.kernel_matrix(torch.cat([hidden, held_out]))
    values = torch.cat([one_hot, wanted])
    assert ranpac.best_ridge(kernel, values, len(x), start) == best


def test_a_ridge_that_rounding_makes_useless_is_reported() -> None:
    kernel = ranpac.kernel_matrix(torch.ones(2, 5).double() * 1e9)
    assert ranpac.ridge_solution(kernel, torch.eye(2).double(), 1e-8) is None


def test_fetrils_classifier_is_scikit_learns_svm() -> None:
    x, y = samples(30)
    weight, bias = fit_svm(x, y, CLASSES, c=1.0)
    unit = torch.nn.functional.normalize(x).double().numpy()
    svm = LinearSVC(C=1.0, loss="squared_hinge", dual=False, tol=1e-8, max_iter=10_000)
    svm.fit(unit, y.numpy())
    torch.testing.assert_close(weight.double(), torch.from_numpy(svm.coef_), rtol=1e-2, atol=1e-2)
    expected = torch.from_numpy(svm.intercept_)
    torch.testing.assert_close(bias.double(), expected, rtol=1e-2, atol=1e-2)
