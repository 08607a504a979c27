"""Every router keeps this contract."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from remembering.config import ClassifierSettings, RouterSettings
from remembering.errors import RememberingError
from remembering.routing import ROUTERS, Router, make_router
from remembering.routing.gaussian import GaussianRouter
from remembering.routing.reconstruction import linear_errors
from remembering.routing.subspace import top_eigenvectors

PAPER = RouterSettings("autoencoder", epochs=200)
KINDS = {kind: replace(PAPER, kind=kind) for kind in ROUTERS}  # type: ignore[arg-type]
CASES = {
    **KINDS,
    "four layers": replace(PAPER, hidden=32),
    "latent 3": replace(PAPER, latent=3),
    "sigmoid": replace(PAPER, form="sigmoid"),
    "sigmoid, four layers": replace(PAPER, form="sigmoid", hidden=32),
}


def features(task: int, n: int = 60, dim: int = 17) -> Tensor:
    """Features of a task: noise around a direction of its own, in (0, 1)."""
    rng = torch.Generator().manual_seed(100 + task)
    direction = torch.randn(dim, generator=torch.Generator().manual_seed(task)) * 1.5
    return (direction + 0.2 * torch.randn(n, dim, generator=rng)).sigmoid()


def targets(n: int = 60) -> Tensor:
    return torch.arange(n) % 3


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=CASES, scope="module")  # routers are immutable
def router(request: pytest.FixtureRequest) -> Router:
    made = make_router(CASES[request.param])
    for task in range(3):
        made = made.with_expert(10 + task, made.fit(features(task), targets(), rng(task)))
    return made


def test_knows_its_own_task_best(router: Router) -> None:
    for task in range(3):
        errors = router.scores(features(task, n=40)[20:])
        assert errors.shape == (20, 3)
        assert (errors.argmin(1) == task).float().mean() > 0.9


def test_a_sample_scores_the_same_in_any_batch_and_order(router: Router) -> None:
    x = torch.cat([features(task) for task in range(3)])
    whole = router.scores(x)
    order = torch.randperm(len(x), generator=rng())
    torch.testing.assert_close(router.scores(x[order]), whole[order], rtol=1e-6, atol=1e-9)
    for size in (1, 7):
        parts = torch.cat([router.scores(part) for part in x.split(size)])
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-8)


def test_scoring_all_experts_at_once_equals_one_by_one(router: Router) -> None:
    x = features(1)
    together = router.scores(x)
    for column, (task, expert) in enumerate(router.experts.items()):
        alone = type(router)(router.settings, {task: expert}, router.shared)
        torch.testing.assert_close(alone.scores(x)[:, 0], together[:, column], rtol=1e-5, atol=1e-8)


def test_removing_a_task_leaves_the_others_as_they_were(router: Router) -> None:
    before = router.scores(features(2))
    after = router.without_expert(11).scores(features(2))
    # Gaussians share a covariance, which is estimated from fewer samples without the task.
    close = 1e-2 if router.settings.kind == "gaussian" else 1e-12
    torch.testing.assert_close(after, before[:, [0, 2]], rtol=close, atol=1e-12)


def test_fitting_changes_no_other_expert_and_is_repeatable(router: Router) -> None:
    before = {t: {k: v.clone() for k, v in e.items()} for t, e in router.experts.items()}
    one, two = (router.fit(features(5), targets(), rng(5)) for _ in range(2))
    assert all(torch.equal(one[key], two[key]) for key in one)
    for task, expert in before.items():
        assert all(torch.equal(router.experts[task][key], value) for key, value in expert.items())


def test_a_router_is_not_changed_by_its_methods(router: Router) -> None:
    x, before = features(1), (dict(router.experts), dict(router.shared))
    scores = router.scores(x)
    router.with_expert(20, router.fit(features(5), targets(), rng(5))).scores(x)
    router.without_expert(10)
    if isinstance(router, GaussianRouter):
        router.with_samples(10, router.samples(10, features(0)[:6], targets(6)))
    assert list(router.experts) == [10, 11, 12]
    assert all(router.experts[task] is expert for task, expert in before[0].items())
    assert all(router.shared[key] is value for key, value in before[1].items())
    assert torch.equal(
        type(router)(router.settings, router.experts, router.shared).scores(x), scores
    )


def test_there_is_one_latent_per_image_and_none_takes_gradients(router: Router) -> None:
    latents = router.encode(features(0), router.experts[10])
    assert len(latents) == 60
    assert not latents.requires_grad


def test_counts_what_it_keeps(router: Router) -> None:
    kept = [router.shared, *router.experts.values()]
    assert router.parameters == sum(v.numel() for part in kept for v in part.values()) > 0


def test_what_was_stored_answers_alike(router: Router) -> None:
    again = type(router)(router.settings, router.experts, router.shared)
    x = features(1)
    assert torch.equal(again.scores(x), router.scores(x))
    assert torch.equal(again.novelty(x), router.novelty(x))


def test_known_inputs_are_familiar_and_others_novel(router: Router) -> None:
    known = torch.cat([features(task, n=600)[60:] for task in range(3)])
    p = router.novelty(known)
    assert ((p > 0) & (p <= 1)).all()
    assert (p <= 0.1).float().mean() < 0.25  # about the requested rate; the sample is small
    unknown = torch.rand(200, known.shape[1], generator=rng(9))
    assert router.novelty(unknown).median() < 0.1


def test_a_class_conditional_router_scores_a_task_by_its_classes(router: Router) -> None:
    if not router.is_class_conditional:
        with pytest.raises(RememberingError, match="does not model classes"):
            router.class_logits(features(0))
        return
    logits = router.class_logits(features(0)).view(60, 3, 3)
    torch.testing.assert_close(-router.scores(features(0)), logits.logsumexp(2))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 7, 59])
def test_fitting_a_few_rows_at_a_time_is_fitting_all_at_once(
    case: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_router(CASES[case])
    whole = made.fit(features(0), targets(), rng())
    monkeypatch.setattr("remembering.runtime.mmap_buffer.CHUNK_BYTES", rows * 8 * 17)
    torch.testing.assert_close(made.fit(features(0), targets(), rng()), whole)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize(
    ("tokens", "width"),
    [("mean", 2 * 5), ("flat", 2 * 5 * 8), ("pooled", 2 * 2 * 8), ("moments", 2 * 2 * 8)],
)
def test_features_of_several_states_stand_side_by_side(kind: str, tokens: str, width: int) -> None:
    made = make_router(RouterSettings(kind=kind, tokens=tokens, layers=(0, 2)))  # type: ignore[arg-type]
    states = [torch.randn(3, 5, 8), torch.randn(3, 5, 8)]
    x = made.features(states)
    assert x.shape == (3, width)
    first = make_router(made.settings).features(states[:1])
    torch.testing.assert_close(x[:, : width // 2], first)


def test_the_paper_s_features_are_the_sigmoid_of_the_token_means() -> None:
    state = torch.randn(3, 5, 8)
    x = make_router(PAPER.resolved(12)).features([state])
    torch.testing.assert_close(x, state.mean(2).sigmoid())


@pytest.mark.parametrize(
    ("depth", "layers"), [(1, (1,)), (6, (2, 3, 4, 5, 6)), (12, (4, 6, 8, 10, 12))]
)
def test_the_classifier_reads_deep_layers(depth: int, layers: tuple[int, ...]) -> None:
    assert ClassifierSettings().resolved(depth).layers == layers
    assert ClassifierSettings(layers=(1,)).resolved(depth).layers == (1,)


def test_the_router_reads_the_first_layers() -> None:
    assert RouterSettings().resolved(12).layers == (1, 2)
    assert RouterSettings().resolved(1).layers == (1,)
    assert RouterSettings("subspace").resolved(12).layers == (0,)


def test_the_sigmoid_form_is_the_autoencoder_of_the_authors_script() -> None:
    """Linear with bias, ReLU, linear with bias, sigmoid, as modules of torch compute it."""
    made = make_router(replace(PAPER, form="sigmoid", latent=2, epochs=20))
    x = features(0)
    expert = made.fit(x, targets(), rng())
    encoder, decoder = torch.nn.Linear(17, 2), torch.nn.Linear(2, 17)
    state = [expert[key] for key in ("weight1", "bias1", "weight2", "bias2")]
    for parameter, value in zip([*encoder.parameters(), *decoder.parameters()], state, strict=True):
        parameter.data = value
    latent = encoder(x).relu()
    torch.testing.assert_close(made.encode(x, expert), latent)
    error = (decoder(latent).sigmoid() - x).square().mean(1).double()
    torch.testing.assert_close(made.with_expert(0, expert).scores(x)[:, 0], error)


@settings(max_examples=30)
@given(latent=st.integers(1, 4), task=st.integers(0, 50), n=st.integers(5, 80))
def test_the_closed_form_is_at_least_as_good_as_training(latent: int, task: int, n: int) -> None:
    x = features(task, n)
    routers = [
        make_router(RouterSettings("autoencoder", latent=latent, epochs=50)),
        make_router(RouterSettings("subspace", latent=latent)),
    ]
    trained, closed = (r.with_expert(0, r.fit(x, targets(n), rng())) for r in routers)
    assert closed.scores(x).mean() <= trained.scores(x).mean() + 1e-7


def test_training_nearly_reaches_the_closed_form() -> None:
    """Both minimise the same loss: long training must end close to the optimum."""
    x = features(0, 200)
    losses = {}
    for kind, epochs in (("autoencoder", 1500), ("subspace", 1)):
        made = make_router(RouterSettings(kind=kind, epochs=epochs))  # type: ignore[arg-type]
        made = made.with_expert(0, made.fit(x, targets(200), rng()))
        losses[kind] = float(made.scores(x).mean())
    assert losses["subspace"] <= losses["autoencoder"] < 1.1 * losses["subspace"]


@pytest.mark.parametrize("spread", [1.0, 3.0], ids=["no direction stands out", "some stand out"])
@pytest.mark.parametrize("count", [1, 3])
def test_top_eigenvectors_are_those_of_the_whole_spectrum(spread: float, count: int) -> None:
    scales = spread ** -torch.arange(200, dtype=torch.float64)
    x = torch.randn(300, 200, generator=rng(), dtype=torch.float64) * scales
    vectors = torch.linalg.eigh(x.mT @ x).eigenvectors
    found = top_eigenvectors(x.mT @ x, count)
    torch.testing.assert_close(found.mT @ found, torch.eye(count, dtype=torch.float64))
    along = (found.mT @ vectors.flip(1)[:, :count]).diagonal()
    torch.testing.assert_close(along.abs(), torch.ones(count, dtype=torch.float64))


def test_the_fast_error_equals_the_plain_one() -> None:
    x, encoders, decoders = torch.rand(6, 9), torch.randn(4, 2, 9), torch.randn(4, 9, 2)
    fast = linear_errors(x, encoders, decoders)
    for e in range(4):
        plain = F.mse_loss(x @ encoders[e].mT @ decoders[e].mT, x, reduction="none").mean(1)
        torch.testing.assert_close(fast[:, e].float(), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"latent": 0},
        {"layers": (-1,)},
        {"layers": (2, 1)},
        {"hidden": 8},
        {"form": "sigmoid"},
        {"weight_decay": -0.1},
        {"epochs": 0},
        {"lr": float("nan")},
    ],
)
def test_contradictory_settings_are_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(RememberingError):
        replace(RouterSettings(), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "dim"), [("subspace", 5000), ("gaussian", 20000)])
def test_features_too_wide_are_refused(kind: str, dim: int) -> None:
    made = make_router(RouterSettings(kind))  # type: ignore[arg-type]
    with pytest.raises(RememberingError, match=r"too large|at most"):
        made.fit(torch.rand(2, dim), targets(2), rng())
