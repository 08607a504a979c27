"""The experiment files of the paper and of its authors' script against literal tables.

The values of `PAPER` are those of section 4.1 of the paper, those of `SCRIPT` the defaults of the
script at commit c0fb764. docs/fidelity.md names the sentence or line of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import make_task

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError
from remembering.experiments.spec import Experiment, ExperimentFile, find, names
from remembering.model import RememberingTransformer
from remembering.routing import make_router

NAMES = ("cifar10-5", "cifar100-10", "cifar100-20", "capacity", "replay", "permuted-mnist-50")

STREAMS: dict[str, dict[str, Any]] = {
    "cifar10-5": {"source": "cifar10", "kind": "split", "tasks": 5},
    "cifar100-10": {"source": "cifar100", "kind": "split", "tasks": 10},
    "cifar100-20": {"source": "cifar100", "kind": "split", "tasks": 20},
    "capacity": {"source": "cifar10", "kind": "split", "tasks": 5},
    "replay": {"source": "cifar10", "kind": "split", "tasks": 5},
    "permuted-mnist-50": {"source": "mnist", "kind": "permute", "tasks": 50},
}
TOTAL_EPOCHS = {
    "cifar10-5": 50,
    "cifar100-10": 200,
    "cifar100-20": 200,
    "capacity": 50,
    "replay": 50,
    "permuted-mnist-50": 2000,
}
EPOCHS_PER_TASK = {
    "cifar10-5": 10,
    "cifar100-10": 20,
    "cifar100-20": 10,
    "capacity": 10,
    "replay": 10,
    "permuted-mnist-50": 40,
}
VARIANTS: dict[str, dict[str | None, dict[str, int | None]]] = {
    "capacity": {f"E={e}": {"capacity": e, "memory": 512} for e in (5, 3, 2)},
    "replay": {f"M={m}": {"capacity": 3, "memory": m} for m in (512, 256, 128)},
}
"""Tables 2 and 3."""
SMALL_VARIANTS: dict[str, dict[str | None, dict[str, int | None]]] = {
    "capacity": {f"E={e}": {"capacity": e, "memory": 10} for e in (5, 3, 2, 1)},
    "replay": {f"M={m}": {"capacity": 3, "memory": m} for m in (200, 40, 20, 10)},
}
"""With 200 images per task: all of them, 20, 10 and 5 %."""

PAPER: dict[str, Any] = {
    "backbone": "google/vit-base-patch16-224-in21k",
    "image_size": 224,
    "adapters": "task",
    "rank": 1,
    "schedule": "constant",
    "lr": 0.001,
    "weight_decay": 0.01,
    "batch_size": 128,
    "alpha": 0.5,
    "augment": "none",
    "head": "linear",
    "first_layer": 0,
    "classifier.kind": "head",
    "router.kind": "autoencoder",
    "router.form": "linear",
    "router.layers": (0,),
    "router.latent": 1,
    "router.epochs": 10,
    "router.lr": 0.005,
    "router.batch_size": 128,
    "router.weight_decay": 0.01,
}
SCRIPT: dict[str, Any] = {
    **PAPER,
    "backbone": "google/vit-base-patch16-224",
    "weight_decay": 0.05,
    "augment": "resized_crop",
    "head": "frozen",
    "router.form": "sigmoid",
    "router.weight_decay": 0.05,
}
PER_EXPERIMENT: dict[str, dict[str, Any]] = {
    **{f"paper/{name}": {"router.tokens": "mean", "router.hidden": 0} for name in NAMES},
    **{f"authors/{name}": {"router.tokens": "mean", "router.hidden": 0} for name in NAMES},
    "paper/permuted-mnist-50": {"router.tokens": "mean", "router.hidden": 32},
    "authors/cifar100-10": {"router.tokens": "flat", "router.hidden": 0},
    "authors/cifar100-20": {"router.tokens": "flat", "router.hidden": 0},
    "authors/permuted-mnist-50": {
        "router.tokens": "mean",
        "router.hidden": 0,
        "augment": "none",
    },
}
FUSION = {
    "paper": {"start": "copy", "labels": "soft", "replay": "nearest"},
    "authors": {"start": "copy", "labels": "hard", "replay": "all"},
}
SMALL: dict[str, dict[str, Any]] = {
    "cifar10-5": {"total": 25, "per_class": 100, "test": 50, "router": (256, 2000)},
    "cifar100-10": {"total": 20, "per_class": 100, "test": 25, "router": (128, 50)},
    "cifar100-20": {"total": 40, "per_class": 100, "test": 25, "router": (128, 50)},
    "capacity": {"total": 25, "per_class": 100, "test": 50, "router": (256, 2000)},
    "replay": {"total": 25, "per_class": 100, "test": 50, "router": (256, 2000)},
    "permuted-mnist-50": {"total": 250, "per_class": 100, "test": 20, "router": (128, 50)},
}

every = pytest.mark.parametrize("name", NAMES)
both = pytest.mark.parametrize("whose", ["paper", "authors"])


def values(experiment: Experiment, keys: dict[str, Any]) -> dict[str, Any]:
    """The settings of an experiment by the keys of the tables above."""
    found = {}
    for key in keys:
        owner: Any = experiment if key in ("backbone", "image_size") else experiment.learning
        for part in key.split("."):
            owner = getattr(owner, part)
        found[key] = owner
    return found


@both
@every
def test_every_hyperparameter_is_that_of_the_table(whose: str, name: str) -> None:
    table = {**(PAPER if whose == "paper" else SCRIPT), **PER_EXPERIMENT[f"{whose}/{name}"]}
    for experiment in find(f"{whose}/{name}").variants().values():
        assert values(experiment, table) == table
        assert experiment.total_epochs == TOTAL_EPOCHS[name]
        assert experiment.model_settings(experiment.stream.tasks).epochs == EPOCHS_PER_TASK[name]
        assert {key: getattr(experiment.stream, key) for key in STREAMS[name]} == STREAMS[name]


@both
@every
def test_all_images_are_used_but_for_the_share_of_the_script(whose: str, name: str) -> None:
    share = (120, 20) if (whose, name) == ("authors", "permuted-mnist-50") else (None, None)
    for experiment in find(f"{whose}/{name}").variants().values():
        assert (experiment.stream.per_class, experiment.stream.test_per_class) == share


@both
@every
def test_the_variants_are_the_rows_of_tables_2_and_3(whose: str, name: str) -> None:
    for small, table in ((False, VARIANTS), (True, SMALL_VARIANTS)):
        variants = find(f"{whose}/{name}").variants(small)
        rows = {
            variant: {"capacity": e.learning.capacity, "memory": e.learning.memory}
            for variant, e in variants.items()
        }
        assert rows == table.get(name, {None: {"capacity": None, "memory": None}})
        if name in VARIANTS:
            assert all(vars(e.learning.fusion) == FUSION[whose] for e in variants.values())


@both
def test_small_memories_are_shares_of_a_task(whose: str) -> None:
    """All images of a task, 20, 10 and 5 % of them; 5 % where the capacity varies."""
    for name, shares in (("replay", [1, 0.2, 0.1, 0.05]), ("capacity", [0.05] * 4)):
        found = []
        for experiment in find(f"{whose}/{name}").variants(small=True).values():
            stream = experiment.stream
            task = 10 // stream.tasks * (stream.per_class or 0)
            found.append(experiment.learning.replay_images / task)
        assert found == shares


@pytest.mark.parametrize("small", [False, True])
def test_the_ablations_of_fusion_differ_from_the_paper_in_one_setting(small: bool) -> None:
    base = find("paper/capacity").variants(small)["E=2"].learning
    variants = find("paper/fusion").variants(small)
    changes = {
        name: {k: v for k, v in vars(e.learning.fusion).items() if v != FUSION["paper"][k]}
        for name, e in variants.items()
    }
    assert changes == {
        "as in the paper": {},
        "fresh start": {"start": "fresh"},
        "hard labels": {"labels": "hard"},
        "all tasks replayed": {"replay": "all"},
    }
    for experiment in variants.values():
        assert replace(experiment.learning, fusion=base.fusion) == base


@both
@every
def test_small_settings_are_those_of_the_table(whose: str, name: str) -> None:
    expected = SMALL[name]
    for experiment in find(f"{whose}/{name}").variants(small=True).values():
        stream, learning = experiment.stream, experiment.learning
        assert experiment.total_epochs == expected["total"]
        assert (stream.per_class, stream.test_per_class) == (
            expected["per_class"],
            expected["test"],
        )
        assert (learning.router.batch_size, learning.router.epochs) == expected["router"]
        mnist = name == "permuted-mnist-50"
        assert experiment.backbone == ("bundled" if mnist else "WinKawaks/vit-tiny-patch16-224")
        assert experiment.image_size == (28 if mnist else 112)
        assert (learning.rank, learning.lr) == ((16, 3e-3) if mnist else (1, 1e-3))
        assert learning.batch_size == 32
        assert learning.head == "linear"
        assert learning.router.kind == "autoencoder"
        assert learning.router.form == ("linear" if whose == "paper" else "sigmoid")


@both
@every
def test_each_file_starts_with_the_command_that_runs_it(whose: str, name: str) -> None:
    first = find(f"{whose}/{name}").path.read_text().splitlines()[0]
    assert first == f"# remember run {whose}/{name} --seeds 0,1,2"


def test_names_with_a_folder_are_listed_and_found() -> None:
    assert {f"{whose}/{name}" for whose in ("paper", "authors") for name in NAMES} <= set(names())
    assert find("paper/cifar10-5").name == "paper/cifar10-5"
    assert find(str(find("paper/cifar10-5").path)).name == "cifar10-5"
    with pytest.raises(RememberingError, match="did you mean 'paper/cifar100-20'"):
        find("papers/cifar100-20")


def test_small_variants_replace_the_others() -> None:
    table = {
        "variants": {"A": {"total_epochs": 7}},
        "small": {"image_size": 9, "variants": {"B": {"total_epochs": 1}}},
    }
    file = ExperimentFile("x", find("digits-5").path, table)
    assert {k: v.total_epochs for k, v in file.variants().items()} == {"A": 7}
    assert {k: v.total_epochs for k, v in file.variants(small=True).items()} == {"B": 1}


@pytest.mark.parametrize("decay", [0.01, 0.05])
def test_both_optimisers_are_adamw_with_the_papers_arguments(
    decay: float, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters lr 0.001, autoencoders lr 0.005, β = (0.9, 0.999), and the weight decay."""
    made: list[dict[str, Any]] = []

    class Watched(torch.optim.AdamW):
        def __init__(self, parameters: Any, **arguments: Any):
            made.append(arguments)
            super().__init__(parameters, **arguments)

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    router = RouterSettings("autoencoder", epochs=1, weight_decay=decay)
    settings = Settings.paper(epochs=1, weight_decay=decay, router=router)
    RememberingTransformer.from_backbone(backbone, settings).learn(make_task(0))
    arguments = {"betas": (0.9, 0.999), "weight_decay": decay}
    autoencoder, adapter = {"lr": 0.005, **arguments}, {"lr": 0.001, **arguments}
    assert made == [autoencoder, autoencoder, adapter]  # one autoencoder calibrates p-values


@pytest.mark.parametrize(("form", "count"), [("linear", 2 * 197), ("sigmoid", 3 * 197 + 1)])
def test_parameters_of_an_autoencoder_on_token_means(form: Any, count: int) -> None:
    router = make_router(RouterSettings("autoencoder", epochs=1, form=form))
    rng = torch.Generator().manual_seed(0)
    expert = router.fit(torch.rand(5, 197), torch.zeros(5, dtype=torch.long), rng)
    assert sum(v.numel() for k, v in expert.items() if k != "calibration_scores") == count


def test_the_footprint_of_table_2() -> None:
    """4 · L · 2D · r = 73,728 for ViT-B/16 at rank 1: 0.37M, 0.22M and 0.15M adapters."""
    one = 4 * 12 * 2 * 768 * find("paper/capacity").variants()["E=5"].learning.rank
    assert one == 73_728
    assert [f"{e * one / 1e6:.2f}M" for e in (5, 3, 2)] == ["0.37M", "0.22M", "0.15M"]


@both
@every
def test_the_settings_learn_and_predict(whose: str, name: str, checkpoints: dict[str, Any]) -> None:
    """Three tasks with the settings of a file, but for their length and with one adapter."""
    backbone = Backbone.load(checkpoints["vit-classifier"])
    settings = next(iter(find(f"{whose}/{name}").variants().values())).learning
    settings = replace(settings, epochs=1, router=replace(settings.router, epochs=1))
    if settings.capacity is not None:
        settings = replace(settings, capacity=1, memory=4)
    model = RememberingTransformer.from_backbone(backbone, settings)
    for number in range(3):
        model.learn(make_task(number, (f"a{number}", f"b{number}")))
    prediction = model.predict(make_task(1).images, groups=torch.zeros(12))
    assert len(set(prediction.tasks)) == 1
    assert (model.footprint().heads == 0) == (whose == "authors")
    assert len(model.state.adapters) == (3 if settings.capacity is None else 1)
