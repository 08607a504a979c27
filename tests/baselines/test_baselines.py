"""Every baseline keeps this contract; below it, what each method is known for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import make_task

from remembering.adapters import Adapter
from remembering.backbone import Backbone
from remembering.baselines import BASELINES, LEFT_OUT, Baseline
from remembering.baselines.base import accuracy
from remembering.baselines.bir import Network
from remembering.baselines.clom import CLOM
from remembering.baselines.features import FeatureCache, frozen_features
from remembering.baselines.fetril import translated
from remembering.baselines.hypernet import HyperNet
from remembering.baselines.icarl import herded
from remembering.baselines.mnemonics import Mnemonics
from remembering.baselines.muc import MUC
from remembering.baselines.rotations import Rotated
from remembering.baselines.ssre import merged
from remembering.baselines.supsup import SupSup
from remembering.config import Settings
from remembering.encoding import Prefix
from remembering.errors import RememberingError
from remembering.report.published import TABLE_1
from remembering.tasks.sources import load
from remembering.tasks.split import split
from remembering.tasks.stream import limit
from remembering.tasks.task import Task

SETTINGS = Settings(epochs=2, batch_size=16, lr=3e-3, rank=2)
DIGITS = split(limit(load("digits"), 24, 16, seed=0), 5, seed=0).tasks
STREAM = DIGITS[:2]
QUICK: dict[str, dict[str, float]] = {
    "ranpac": {"projection": 300},
    "ewc": {"images": 20},
    "online_ewc": {"images": 20},
    "mnemonics": {"memory": 40, "epochs": 2},
    "clom": {"turns": 2},
    "bir": {"hidden": 100, "steps": 50},
    "bir_si": {"hidden": 100, "steps": 50},
}
"""Options that make a method quick here; what it does stays the same."""
FORGETS = {"finetune"}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone.load("bundled")


def made(name: str, backbone: Backbone, settings: Settings = SETTINGS) -> Baseline:
    return BASELINES[name](backbone, settings, **QUICK.get(name, {}))


def taught(name: str, backbone: Backbone, **options: float) -> Baseline:
    learner = BASELINES[name](backbone, SETTINGS, **(QUICK.get(name, {}) | options))
    for data in STREAM:
        learner.learn(data.train)
    return learner


def on_digits(name: str, backbone: Backbone, **options: float) -> float:
    """Accuracy on all ten digits, after five tasks of two."""
    learner = BASELINES[name](backbone, SETTINGS, **(QUICK.get(name, {}) | options))
    for data in DIGITS:
        learner.learn(data.train)
    reached = [accuracy(learner.predict(data.test.images), data.test.labels) for data in DIGITS]
    return sum(reached) / len(reached)


def same(one: Baseline, other: Baseline) -> bool:
    a, b = one.everything(), other.everything()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(params=BASELINES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


@pytest.fixture(scope="module")
def learner(name: str, backbone: Backbone) -> Baseline:
    return taught(name, backbone)


@pytest.fixture(scope="module")
def forgetful(backbone: Backbone) -> float:
    return on_digits("finetune", backbone)


@pytest.fixture(scope="module")
def floor(backbone: Backbone) -> Baseline:
    return taught("finetune", backbone)


class TestContract:
    def test_learns_the_last_task(self, learner: Baseline) -> None:
        test = STREAM[-1].test
        assert accuracy(learner.predict(test.images), test.labels) > 0.8
        assert set(learner.classes) == {c for data in STREAM for c in data.train.classes}

    def test_does_not_depend_on_the_batch(self, learner: Baseline) -> None:
        images = STREAM[0].test.images
        answers = learner.predict(images)
        assert learner.predict(images.flip(0)) == answers[::-1]
        assert learner.predict(images[3:4]) == answers[3:4]
        mixed = torch.cat([STREAM[1].test.images, images])
        assert learner.predict(mixed)[-len(images) :] == answers

    def test_is_repeatable(self, name: str, learner: Baseline, backbone: Backbone) -> None:
        assert same(taught(name, backbone), learner)

    def test_saves_and_loads(self, learner: Baseline, backbone: Backbone, tmp_path: Path) -> None:
        path = tmp_path / "state.safetensors"
        learner.save(path)
        again = type(learner).load(path, backbone)
        assert same(again, learner)
        assert (again.classes, again.notes) == (learner.classes, learner.notes)
        assert (again.options, again.settings) == (learner.options, learner.settings)
        for data in STREAM:
            assert again.predict(data.test.images) == learner.predict(data.test.images)
        assert not list(tmp_path.glob(".*"))

    def test_goes_on_after_loading(
        self, name: str, learner: Baseline, backbone: Backbone, tmp_path: Path
    ) -> None:
        """Half-way saved and loaded, it ends with the same bits."""
        path = tmp_path / "half.safetensors"
        half = made(name, backbone)
        half.learn(STREAM[0].train)
        half.save(path)
        loaded = type(half).load(path, backbone)
        loaded.learn(STREAM[1].train)
        assert same(loaded, learner)

    def test_counts_what_it_keeps(self, learner: Baseline) -> None:
        tensors = learner.everything().values()
        footprint = learner.footprint()
        assert footprint.bytes == sum(t.numel() * t.element_size() for t in tensors) > 0
        assert footprint.parameters == sum(
            t.numel() for t in tensors if t.dtype in (torch.float16, torch.float32, torch.float64)
        )
        assert learner.trained <= footprint.parameters

    def test_says_what_it_is(self, name: str, learner: Baseline) -> None:
        assert learner.name == name
        assert learner.title
        assert len(learner.reference) > 20
        assert len(learner.stores) > 10
        assert learner.published is None or learner.published in TABLE_1
        assert "\n" in (type(learner).__doc__ or "")

    def test_labels_that_come_back(self, name: str, backbone: Backbone) -> None:
        """Strings, and a second task that repeats one of them and brings a new one."""
        words = ("nought", "one", "two")
        first, second = (
            Task(name, data.train.images, [words[i + shift] for i in data.train.targets.tolist()])
            for shift, (name, data) in enumerate(zip(("first", "second"), STREAM, strict=True))
        )
        learner = made(name, backbone)
        learner.learn(first)
        learner.learn(second)
        assert learner.classes == words
        reached = [
            accuracy(
                learner.predict(data.test.images),
                [words[i + shift] for i in data.test.targets.tolist()],
            )
            for shift, data in enumerate(STREAM)
        ]
        assert sum(reached) / 2 > 0.6  # chance is a third; some forget, and some will not learn

    def test_the_same_labels_again(self, name: str, backbone: Backbone) -> None:
        """As in permuted digits: every task has all the classes."""
        learner = made(name, backbone)
        learner.learn(STREAM[0].train)
        mirrored = Task("mirrored", STREAM[0].train.images.flip(3), STREAM[0].train.labels)
        learner.learn(mirrored)
        assert learner.classes == STREAM[0].train.classes
        test = STREAM[0].test
        both = torch.cat([test.images, test.images.flip(3)])
        assert accuracy(learner.predict(both), test.labels * 2) > 0.6

    def test_refuses_a_task_that_cannot_be_learned(self, learner: Baseline) -> None:
        before, classes = dict(learner.everything()), learner.classes
        with pytest.raises(RememberingError, match="only the class"):
            learner.learn(make_task(3, (8,)))
        with pytest.raises(RememberingError, match="use one kind"):
            learner.learn(make_task(3, ("x", "y")))
        assert learner.classes == classes
        assert all(torch.equal(learner.everything()[key], before[key]) for key in before)

    def test_a_task_that_fails_leaves_no_trace(self, name: str, backbone: Backbone) -> None:
        learner = made(name, backbone)
        learner.learn(STREAM[0].train)
        before, classes = dict(learner.everything()), learner.classes

        def fail(*_: object) -> None:
            learner.tensors = {}
            learner.notes["half"] = True
            raise ZeroDivisionError

        learner.learn_task = fail  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            learner.learn(STREAM[1].train)
        assert (learner.classes, learner.learned) == (classes, 1)
        assert all(torch.equal(learner.everything()[key], before[key]) for key in before)
        assert "half" not in learner.notes

    def test_asks_for_a_task_first(self, name: str, backbone: Backbone) -> None:
        with pytest.raises(RememberingError, match="learned no task"):
            made(name, backbone).predict(STREAM[0].test.images)

    def test_beats_fine_tuning(self, name: str, backbone: Backbone, forgetful: float) -> None:
        if name in FORGETS:
            assert forgetful < 0.7
        else:
            assert on_digits(name, backbone) > forgetful + 0.02


class TestFiles:
    @pytest.fixture
    def learner(self, backbone: Backbone) -> Baseline:
        return taught("ncm", backbone)

    def test_damage_is_noticed(self, learner: Baseline, backbone: Backbone, tmp_path: Path) -> None:
        path = tmp_path / "state"
        learner.save(path)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(RememberingError, match="checksum"):
            BASELINES["ncm"].load(path, backbone)
        path.write_bytes(whole[:-1])
        with pytest.raises(RememberingError, match="cannot be used"):
            BASELINES["ncm"].load(path, backbone)

    def test_of_another_method_or_backbone(
        self, learner: Baseline, backbone: Backbone, checkpoints: dict[str, Path], tmp_path: Path
    ) -> None:
        learner.save(tmp_path / "state")
        with pytest.raises(RememberingError, match="it holds ncm"):
            BASELINES["slda"].load(tmp_path / "state", backbone)
        with pytest.raises(RememberingError, match="another backbone"):
            BASELINES["ncm"].load(tmp_path / "state", Backbone.load(checkpoints["vit"]))


def test_an_option_that_a_method_does_not_have(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="no option 'strenght'; its options are strength"):
        BASELINES["ewc"](backbone, SETTINGS, strenght=1)


def test_a_method_is_carried_over_or_left_out() -> None:
    assert not BASELINES.keys() & LEFT_OUT.keys()


@pytest.mark.parametrize("name", ["ewc", "online_ewc", "si"])
def test_strength_zero_is_fine_tuning(name: str, backbone: Backbone, floor: Baseline) -> None:
    free = taught(name, backbone, strength=0)
    for key, value in floor.tensors.items():
        assert torch.equal(free.tensors[key], value)


def test_ewc_stays_where_it_was_if_strong_enough(backbone: Backbone) -> None:
    """The more strength, the less parameters that mattered move."""
    moved = []
    for strength in (0.0, 1e5):
        learner = taught("ewc", backbone, strength=strength)
        weight = learner.tensors["fisher.0.a"]
        change = learner.tensors["adapter.a"] - learner.tensors["at.0.a"]
        moved.append(float((weight * change.square()).sum()))
    assert moved[1] < 0.5 * moved[0]


def test_fisher_information_of_a_head_alone(backbone: Backbone) -> None:
    """For the bias of a softmax, E (∂ log p / ∂b)² = p (1 − p): known without a backward pass."""
    learner = taught("ewc", backbone, images=60)
    data = STREAM[1].train
    p = learner.scores(data.images).softmax(1)
    expected = (p * (1 - p)).mean(0)
    found = learner.tensors["fisher.1.bias"]
    assert float((found - expected).abs().max()) < 0.05
    assert float(found.max()) > 0


def test_online_ewc_does_not_grow_with_tasks(backbone: Backbone) -> None:
    one = made("online_ewc", backbone)
    one.learn(STREAM[0].train)
    two = taught("online_ewc", backbone)
    new_rows = 2 * 2 * 97  # two classes, in the head and in what it mattered
    assert two.footprint().parameters == one.footprint().parameters + new_rows


def test_nearest_class_mean_is_the_mean(backbone: Backbone) -> None:
    learner = taught("ncm", backbone)
    data = STREAM[1].train
    features = frozen_features(backbone, data.images, backbone.depth)
    for label in data.classes:
        rows = torch.tensor([other == label for other in data.labels])
        found = learner.tensors["means"][learner.classes.index(label)]
        torch.testing.assert_close(found, features[rows].mean(0))


def test_streaming_lda_finds_means_and_covariance(backbone: Backbone) -> None:
    """Of two classes drawn with known ones, in two parts."""
    rng = torch.Generator().manual_seed(0)
    mix, centres = torch.randn(4, 4, generator=rng), torch.tensor([[3.0] * 4, [-2.0] * 4])
    targets = torch.arange(4000) % 2
    features = centres[targets] + torch.randn(4000, 4, generator=rng) @ mix
    learner = BASELINES["slda"](backbone, SETTINGS)
    learner.classes = (0, 1)
    for part in (slice(0, 1000), slice(1000, 4000)):
        learner.learn_features(features[part], targets[part])  # type: ignore[attr-defined]
    wanted = mix.mT @ mix
    found = learner.tensors["covariance"]
    assert float((found - wanted).norm() / wanted.norm()) < 0.1
    assert float((learner.tensors["means"] - centres).abs().max()) < 0.2
    assert learner.tensors["counts"].tolist() == [2000, 2000]


def test_ranpac_beats_nearest_class_mean(backbone: Backbone) -> None:
    assert on_digits("ranpac", backbone) > on_digits("ncm", backbone)


def test_ranpac_forgets_no_order(backbone: Backbone) -> None:
    """Its sums are the same whatever the order of the tasks."""
    forward = taught("ranpac", backbone)
    backward = made("ranpac", backbone)
    for data in reversed(STREAM):
        backward.learn(data.train)
    torch.testing.assert_close(forward.tensors["gram"], backward.tensors["gram"], rtol=1e-4, atol=1)


def test_icarl_with_a_larger_memory_does_not_get_worse(backbone: Backbone) -> None:
    small, large = (on_digits("icarl", backbone, memory=memory) for memory in (10, 200))
    assert large >= small


def test_icarl_keeps_no_more_than_its_memory(backbone: Backbone) -> None:
    assert len(taught("icarl", backbone, memory=21).tensors["exemplars.0.targets"]) == 10
    for memory in (1, 3):
        with pytest.raises(RememberingError, match="needs a larger memory"):
            taught("icarl", backbone, memory=memory)


def test_herding_keeps_the_mean() -> None:
    """The mean of a few herded features is nearer to the class's than that of the first few."""
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    chosen = herded(features, torch.arange(40) % 2, size=8)
    assert len(set(chosen.tolist())) == 8
    for label, rows in ((0, chosen[:4]), (1, chosen[4:])):
        own = features[label::2]
        assert set((rows % 2).tolist()) == {label}
        off = [(part.mean(0) - own.mean(0)).norm() for part in (features[rows], own[:4])]
        assert off[0] < 0.5 * off[1]


def test_der_with_a_memory_of_everything_approaches_joint(backbone: Backbone) -> None:
    """Two epochs of ten classes with 24 images: 480 are in the buffer at the end, of 1,000."""
    everything = on_digits("der", backbone, memory=1000, alpha=0, beta=1)
    assert everything > on_digits("joint", backbone) - 0.05


def test_der_without_a_past_in_its_loss_is_fine_tuning(backbone: Backbone, floor: Baseline) -> None:
    free = taught("der", backbone, alpha=0, beta=0)
    for key, value in floor.tensors.items():
        assert torch.equal(free.tensors[key], value)


def test_der_keeps_a_fair_sample(backbone: Backbone) -> None:
    """Each task has its share of the buffer, with outputs for the classes known when it came."""
    learner = taught("der", backbone, memory=60)
    targets, known = learner.tensors["buffer.targets"], learner.tensors["buffer.known"]
    assert len(targets) == len(learner.tensors["buffer.images"]) == 60
    first = targets < 2
    assert 20 <= int(first.sum()) <= 40
    assert torch.equal(known, torch.where(first, 2, 4))
    assert not bool(learner.tensors["buffer.answers"][first, 2:].any())
    assert learner.notes["seen"] == 192


def test_mnemonics_teach_a_head_better_than_the_images_they_were(backbone: Backbone) -> None:
    """After a step on them the head errs less on the task that they stand for."""
    data, losses = STREAM[0].train, []
    for epochs in (0, 10):
        learner = Mnemonics(backbone, SETTINGS, memory=10, epochs=epochs)
        learner.learn(data)
        images, targets = learner.exemplars.images, learner.exemplars.targets
        assert isinstance(images, torch.Tensor)
        assert images.dtype == torch.uint8
        lessons, asked = (
            learner.features(learner.prefix(x), len(x)) for x in (images, data.images)
        )
        weight, bias = learner.head.weight.clone().requires_grad_(), learner.head.bias
        one_hot = torch.nn.functional.one_hot
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        bce(lessons @ weight.mT + bias, one_hot(targets).float()).backward()
        assert weight.grad is not None
        after = asked @ (weight - 6 * weight.grad).mT + bias
        losses.append(bce(after, one_hot(data.targets).float()).item())
    assert losses[1] < losses[0]


def test_side_classifiers_agree_on_their_task_alone(backbone: Backbone) -> None:
    learner = MUC(backbone, replace(SETTINGS, epochs=20))
    data = STREAM[0].train
    learner.learn(data)
    weight, bias = learner.tensors["sides.weight"], learner.tensors["sides.bias"]
    turned = Rotated(backbone, data.images)
    features = learner.features(Prefix(backbone, turned, 0), len(turned))
    said = (features @ weight.mT + bias[:, None]).softmax(2)
    spread = (said.amax(0) - said.amin(0)).amax(1)
    assert spread[: len(data)].mean() < 0.5 * spread[len(data) :].mean()


def test_a_hypernetwork_starts_as_a_new_adapter_does(backbone: Backbone) -> None:
    fresh = HyperNet(backbone, SETTINGS).new_adapter().active()
    like = Adapter.new(backbone, SETTINGS.rank, 0, torch.Generator().manual_seed(0))
    assert fresh.a.shape == like.a.shape
    assert not fresh.b.any()
    assert float(fresh.a.std()) == pytest.approx(float(like.a.std()), rel=0.3)


def test_a_hypernetwork_is_held_to_its_old_adapters(backbone: Backbone) -> None:
    moved = []
    for strength in (0.0, 0.01):
        learner = HyperNet(backbone, SETTINGS, strength=strength)
        learner.learn(STREAM[0].train)
        before = learner.adapter(0).made()
        learner.learn(STREAM[1].train)
        moved.append(float((learner.adapter(0).made() - before).norm()))
    assert moved[1] < 0.5 * moved[0]


def test_supsup_trains_no_weight(backbone: Backbone) -> None:
    """An adapter is the same random numbers in every task, under masks that differ."""
    learner = SupSup(backbone, SETTINGS)
    assert not learner.new_adapter().active().b.any()
    for data in STREAM:
        learner.learn(data.train)
    first, second = (learner.adapter(number).b for number in (0, 1))
    assert set(first.abs().unique().tolist()) == set(second.abs().unique().tolist())
    both = (first != 0) & (second != 0)
    assert torch.equal(first[both], second[both])
    assert not torch.equal(first != 0, second != 0)


def test_clom_knows_a_turned_image(backbone: Backbone) -> None:
    """Its outputs for each class and turn say how an image is turned."""
    learner = CLOM(backbone, SETTINGS)
    data = STREAM[0]
    learner.learn(data.train)
    turned = Rotated(backbone, data.test.images)
    said = learner.said(0, Prefix(backbone, turned, 0)[torch.arange(len(turned))])
    wanted = torch.arange(len(turned)) // len(data.test)
    assert float((said.argmax(1) // 2 == wanted).float().mean()) > 0.6


def test_fetril_moves_features_to_the_old_means(backbone: Backbone) -> None:
    rng = torch.Generator().manual_seed(0)
    features, means = torch.randn(20, 5, generator=rng), torch.randn(3, 5, generator=rng)
    moved, owners = translated(means, features, torch.arange(20) % 2 + 3)
    for c in range(3):
        torch.testing.assert_close(moved[owners == c].mean(0), means[c])


def test_fetril_trains_its_adapter_once(backbone: Backbone) -> None:
    learner = made("fetril", backbone)
    learner.learn(STREAM[0].train)
    before = learner.tensors["adapter.b"]
    learner.learn(STREAM[1].train)
    assert torch.equal(learner.tensors["adapter.b"], before)


@pytest.mark.parametrize(("name", "idea"), [("pass", "turns"), ("il2a", "mixes")])
def test_without_its_ideas_it_is_fine_tuning(
    name: str, idea: str, backbone: Backbone, floor: Baseline
) -> None:
    plain = taught(name, backbone, distil=0, replay=0, **{idea: 0})
    for key, value in floor.tensors.items():
        assert torch.equal(plain.tensors[key], value)


def test_il2a_finds_covariances_in_parts(backbone: Backbone) -> None:
    """Also of a class that comes back."""
    rng = torch.Generator().manual_seed(0)
    features, targets = torch.randn(60, 4, generator=rng) + 3, torch.arange(60) % 2
    learner = BASELINES["il2a"](backbone, SETTINGS)
    learner.classes = (0, 1)
    for part in (slice(0, 20), slice(20, 60)):
        learner.tensors |= learner.summary(features[part], targets[part])  # type: ignore[attr-defined]
        learner.learned += 1
    for c in (0, 1):
        wanted = features[targets == c].mT.cov(correction=0)
        torch.testing.assert_close(learner.tensors["covariances"][c], wanted, atol=1e-4, rtol=1e-4)


def test_il2a_has_nothing_to_mix_in_a_batch_of_one_class(backbone: Backbone) -> None:
    learner = made("il2a", backbone, replace(SETTINGS, batch_size=1, epochs=1))
    learner.learn(make_task(0, ("a", "b")))
    assert learner.tensors["head.weight"].isfinite().all()


def test_ssre_keeps_its_branches(backbone: Backbone) -> None:
    """Only the new one is trained; it is merged as more rank."""
    learner = made("ssre", backbone)
    learner.learn(STREAM[0].train)
    before, trained = dict(learner.tensors), learner.trained
    learner.learn(STREAM[1].train)
    rank = SETTINGS.rank
    assert learner.tensors["adapter.a"].shape[2] == 2 * rank
    assert torch.equal(learner.tensors["adapter.a"][:, :, :rank], before["adapter.a"])
    assert torch.equal(learner.tensors["adapter.b"][..., :rank], before["adapter.b"])
    assert learner.tensors["adapter.b"][..., rank:].any()
    assert learner.trained == trained + 2 * 97


def test_ssre_merges_branches_exactly(backbone: Backbone) -> None:
    rng = torch.Generator().manual_seed(0)
    one, two = (Adapter.new(backbone, 2, 0, rng) for _ in range(2))
    one, two = (replace(each, b=torch.randn(each.b.shape, generator=rng)) for each in (one, two))
    both = merged(one, two)
    torch.testing.assert_close(both.b @ both.a, one.b @ one.a + two.b @ two.a)


def test_owm_with_nothing_to_avoid_is_fine_tuning(backbone: Backbone, floor: Baseline) -> None:
    free = taught("owm", backbone, alpha=1e12)
    for key, value in floor.tensors.items():
        torch.testing.assert_close(free.tensors[key], value, rtol=1e-3, atol=1e-3)


def test_owm_leaves_what_it_said_of_old_images(backbone: Backbone) -> None:
    """The more so, the smaller α."""
    images, drifts = STREAM[0].train.images, []
    for alpha in (1e-4, 1e4):
        learner = BASELINES["owm"](backbone, SETTINGS, alpha=alpha)
        learner.learn(STREAM[0].train)
        before = learner.scores(images)
        learner.learn(STREAM[1].train)
        drifts.append(float((learner.scores(images)[:, :2] - before).norm()))
    assert drifts[0] < 0.1 * drifts[1]


def test_bir_dreams_of_its_classes(backbone: Backbone) -> None:
    """Features made for a class are near to the real ones of that class."""
    learner = taught("bir", backbone)
    network = Network(learner.tensors, learner.gates(torch.zeros(1)))  # type: ignore[attr-defined]
    means = []
    for label in learner.classes:
        data = next(data.train for data in STREAM if label in data.train.classes)
        rows = torch.tensor([other == label for other in data.labels])
        means.append(frozen_features(backbone, data.images[rows], backbone.depth).mean(0))
    classes = torch.arange(4).repeat(20)
    dreams = network.dreamt(classes, torch.Generator().manual_seed(0))
    nearest = torch.cdist(dreams, torch.stack(means)).argmin(1)
    assert float((nearest == classes).float().mean()) > 0.7


def test_bir_with_si_of_no_strength_is_bir(backbone: Backbone) -> None:
    plain, free = taught("bir", backbone), taught("bir_si", backbone, strength=0)
    for key, value in plain.tensors.items():
        assert torch.equal(free.tensors[key], value)


class TestFeatureCache:
    def test_methods_share_features(self, backbone: Backbone) -> None:
        cache = FeatureCache()
        first = BASELINES["ncm"](backbone, SETTINGS, cache)
        first.learn(STREAM[0].train)
        assert cache.saved == 0
        second = BASELINES["slda"](backbone, SETTINGS, cache)
        second.learn(STREAM[0].train)
        assert cache.saved > 0

    def test_is_bounded_and_tells_depths_and_images_apart(self, backbone: Backbone) -> None:
        images = STREAM[0].test.images
        cache = FeatureCache(limit=len(images) * 96 * 4)
        deep = cache.features(backbone, images, 6)
        assert not torch.equal(cache.features(backbone, images, 3), deep)
        assert cache.bytes <= cache.limit
        assert torch.equal(cache.features(backbone, images, 6), deep)
        assert not torch.equal(cache.features(backbone, images.flip(0), 6), deep)
