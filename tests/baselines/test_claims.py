"""Properties that distinguish the baselines from each other."""

from __future__ import annotations

import pytest
import torch

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline

from .example import on_digits, taught

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "finetune"])
def test_every_method_beats_fine_tuning(
    name: str, backbone: Backbone, finetuning_accuracy: float
) -> None:
    assert on_digits(name, backbone) > finetuning_accuracy + 0.02


def test_fine_tuning_forgets(finetuning_accuracy: float) -> None:
    assert finetuning_accuracy < 0.7


@pytest.mark.parametrize("name", ["ewc", "online_ewc", "si"])
def test_strength_zero_is_fine_tuning(name: str, backbone: Backbone, finetuned: Baseline) -> None:
    unconstrained = taught(name, backbone, strength=0)
    for key, value in finetuned.tensors.items():
        assert torch.equal(unconstrained.tensors[key], value)


def test_der_without_replay_loss_is_fine_tuning(backbone: Backbone, finetuned: Baseline) -> None:
    unconstrained = taught("der", backbone, alpha=0, beta=0)
    for key, value in finetuned.tensors.items():
        assert torch.equal(unconstrained.tensors[key], value)


@pytest.mark.parametrize(("name", "option"), [("pass", "turns"), ("il2a", "mixes")])
def test_prototype_replay_without_its_losses_is_fine_tuning(
    name: str, option: str, backbone: Backbone, finetuned: Baseline
) -> None:
    plain = taught(name, backbone, distil=0, replay=0, **{option: 0})
    for key, value in finetuned.tensors.items():
        assert torch.equal(plain.tensors[key], value)


def test_owm_with_a_large_alpha_is_fine_tuning(backbone: Backbone, finetuned: Baseline) -> None:
    unconstrained = taught("owm", backbone, alpha=1e12)
    for key, value in finetuned.tensors.items():
        torch.testing.assert_close(unconstrained.tensors[key], value, rtol=1e-3, atol=1e-3)


def test_bir_si_with_strength_zero_is_bir(backbone: Backbone) -> None:
    plain, unconstrained = taught("bir", backbone), taught("bir_si", backbone, strength=0)
    for key, value in plain.tensors.items():
        assert torch.equal(unconstrained.tensors[key], value)


def test_der_with_a_memory_of_everything_approaches_joint(backbone: Backbone) -> None:
    """A buffer of 1,000 holds all 480 images: two epochs of ten classes with 24 images."""
    everything = on_digits("der", backbone, memory=1000, alpha=0, beta=1)
    assert everything > on_digits("joint", backbone) - 0.05


@pytest.mark.parametrize("name", ["ranpac", "ranpac_frozen"])
def test_ranpac_beats_nearest_class_mean(name: str, backbone: Backbone) -> None:
    assert on_digits(name, backbone) > on_digits("ncm", backbone)


def test_icarl_with_a_larger_memory_does_not_get_worse(backbone: Backbone) -> None:
    small, large = (on_digits("icarl", backbone, memory=memory) for memory in (10, 200))
    assert large >= small
