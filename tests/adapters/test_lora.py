"""The bank: mixed batches, and files that the real PEFT reads and writes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FAMILIES, random_adapter, read_peft, some_tokens
from torch import Tensor

from remembering.adapters.bank import AdapterBank
from remembering.adapters.lora import Adapter, OneAdapter
from remembering.adapters.peft_format import to_peft
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError


def write(adapter: Adapter, backbone: Backbone, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in to_peft(adapter, backbone).items():
        (folder / name).write_bytes(data)
    return folder


def test_a_new_adapter_changes_nothing(backbone: Backbone) -> None:
    tokens = some_tokens(backbone, 2)
    adapter = Adapter.new(backbone, 3, 0, torch.Generator().manual_seed(0))
    assert torch.equal(backbone.run(tokens, adapters=adapter.active()), backbone.run(tokens))
    assert adapter.a.std() > 0
    assert not adapter.b.any()


@settings(max_examples=25)
@given(
    chosen=st.lists(st.sampled_from([0, 3, 4, 9]), min_size=1, max_size=7),
    rank=st.integers(1, 5),
    first_layer=st.integers(0, 2),
)
def test_a_mixed_batch_equals_one_by_one(
    chosen: list[int], rank: int, first_layer: int, backbone: Backbone
) -> None:
    bank = AdapterBank()
    for number in (9, 3, 0, 4):
        bank = bank.with_adapter(number, random_adapter(backbone, number, rank, first_layer))
    tokens = some_tokens(backbone, len(chosen))
    mixed = backbone.run(tokens, adapters=bank.mixed(torch.tensor(chosen)))
    for i, number in enumerate(chosen):
        alone = backbone.run(tokens[i : i + 1], adapters=bank[number].active())
        torch.testing.assert_close(mixed[i], alone[0], rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(which=st.sampled_from([(0, 3), (0, 1), (1, 3), (3, 4)]), rank=st.integers(1, 4))
def test_gradients_are_those_of_the_two_products(which: tuple[int, int], rank: int) -> None:
    rng = torch.Generator().manual_seed(0)
    projections = slice(*which)
    count, dim = which[1] - which[0], 6

    def some(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=rng, dtype=torch.float64)
        return values.requires_grad_()

    x, a, b = some(2, 5, dim), some(1, 4, rank, dim), some(1, 4, dim, rank)
    weight, bias, g = (some(count * dim, dim), some(count * dim), some(2, 5, count * dim))
    given = OneAdapter(a, b, 0).linear(0, projections, x, weight.detach(), bias.detach())
    deltas = [(x @ a[0, p].mT) @ b[0, p].mT for p in range(*which)]
    wanted = x @ weight.detach().mT + bias.detach() + torch.cat(deltas, dim=-1)
    torch.testing.assert_close(given, wanted)
    for one, other in zip(
        torch.autograd.grad(given, (x, a, b), g, retain_graph=True),
        torch.autograd.grad(wanted, (x, a, b), g),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_gradients_under_mixed_precision_are_nearly_the_same(backbone: Backbone) -> None:
    tokens = some_tokens(backbone, 3)
    found = []
    for precise in (True, False):
        adapter = random_adapter(backbone, 0).trainable()
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            backbone.finish(tokens, adapters=adapter.active()).float().square().sum().backward()
        assert adapter.a.grad is not None
        assert adapter.b.grad is not None
        found.append(torch.cat([adapter.a.grad.flatten(), adapter.b.grad.flatten()]))
    assert F.cosine_similarity(*found, dim=0) > 0.99


def test_add_replace_remove(backbone: Backbone) -> None:
    bank = AdapterBank()
    for number in range(3):
        bank = bank.with_adapter(number, random_adapter(backbone, number))
    tokens = some_tokens(backbone, 2)
    pair = torch.tensor([1, 2])
    before = backbone.run(tokens, adapters=bank.mixed(pair))
    bank = bank.without(0)
    assert list(bank) == [1, 2]
    assert torch.equal(backbone.run(tokens, adapters=bank.mixed(pair)), before)
    bank = bank.with_adapter(1, random_adapter(backbone, 7))
    after = backbone.run(tokens, adapters=bank.mixed(pair))
    assert not torch.allclose(after[0], before[0])
    torch.testing.assert_close(after[1], before[1])


def test_adapters_of_another_shape_are_refused(backbone: Backbone) -> None:
    bank = AdapterBank()
    bank = bank.with_adapter(0, random_adapter(backbone, 0, rank=2))
    with pytest.raises(RememberingError, match="same rank and layers"):
        bank = bank.with_adapter(1, random_adapter(backbone, 1, rank=3))


@pytest.mark.parametrize(("rank", "first_layer"), [(0, 0), (1, 3), (1, -1)])
def test_bad_shapes_are_refused_at_once(rank: int, first_layer: int, backbone: Backbone) -> None:
    with pytest.raises(RememberingError):
        Adapter.new(backbone, rank, first_layer, torch.Generator())


def test_the_papers_footprint() -> None:
    """4 · L · 2D · r: 73,728 for ViT-B/16 at r = 1; 0.37M, 0.22M, 0.15M for 5, 3, 2."""
    with torch.device("meta"):
        model = transformers.ViTModel(transformers.ViTConfig())
    config = model.config
    adapter = Adapter(
        torch.empty(config.num_hidden_layers, 4, 1, config.hidden_size, device="meta"),
        torch.empty(config.num_hidden_layers, 4, config.hidden_size, 1, device="meta"),
    )
    assert adapter.parameters == 73_728
    assert [f"{n * adapter.parameters / 1e6:.2f}" for n in (5, 3, 2)] == ["0.37", "0.22", "0.15"]


def base_model(folder: Path) -> torch.nn.Module:
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model: torch.nn.Module = getattr(transformers, name).from_pretrained(folder).eval()
    return model


def last_state(model: torch.nn.Module, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(pixels, output_hidden_states=True).hidden_states[-1]
    return result


@pytest.mark.parametrize("first_layer", [0, 1])
@pytest.mark.parametrize("family", [f for f in FAMILIES if "classifier" not in f])
def test_peft_reads_what_we_write(
    family: str, first_layer: int, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    backbone = Backbone.load(checkpoints[family])
    adapter = random_adapter(backbone, 0, rank=3, first_layer=first_layer)
    folder = write(adapter, backbone, tmp_path)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    model = peft.PeftModel.from_pretrained(base_model(checkpoints[family]), folder).eval()
    theirs = last_state(model, backbone.preprocessing.normalise(images))
    ours = backbone.run(backbone.embed(images), adapters=adapter.active())
    # Without a CLS token, ours have the mean of the patches before the patches.
    compared = ours[:, -theirs.shape[1] :]
    torch.testing.assert_close(compared, theirs, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(ours, backbone.run(backbone.embed(images)), atol=1e-3)


@pytest.mark.parametrize("family", ["vit", "dinov2", "clip"])
def test_we_read_what_peft_writes(
    family: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    backbone = Backbone.load(checkpoints[family])
    targets = [name.rsplit(".", 1)[1] for name in backbone.family.projections(0)]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets)  # scaled by 2
    model = peft.get_peft_model(base_model(checkpoints[family]), config)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 0, 0.1)
    model.save_pretrained(tmp_path)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    theirs = last_state(model.eval(), backbone.preprocessing.normalise(images))
    adapter = read_peft(tmp_path, backbone)
    ours = backbone.run(backbone.embed(images), adapters=adapter.active())
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_files_give_back_the_same_bits(backbone: Backbone, tmp_path: Path) -> None:
    adapter = random_adapter(backbone, 5, rank=2, first_layer=1)
    again = read_peft(write(adapter, backbone, tmp_path), backbone)
    assert torch.equal(again.a, adapter.a)
    assert torch.equal(again.b, adapter.b)
    assert again.first_layer == 1


def test_the_pretrained_vit_with_peft(vit_tiny: Path, tmp_path: Path) -> None:
    backbone = Backbone.load(vit_tiny)
    adapter = random_adapter(backbone, 0, rank=1)
    model = peft.PeftModel.from_pretrained(
        base_model(vit_tiny), write(adapter, backbone, tmp_path)
    ).eval()
    images = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    theirs = last_state(model, backbone.preprocessing.normalise(images))
    ours = backbone.run(backbone.embed(images), adapters=adapter.active())
    assert ((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "uses use_dora"),
        ({"modules_to_save": ["head"]}, "uses modules_to_save"),
        ({"alpha_pattern": {"q_proj": 3}}, "uses alpha_pattern"),
        ({"bias": "all"}, "uses bias"),
        ({"r": 0}, "not a LoRA configuration"),
        ({"r": "x"}, "not a LoRA configuration"),
        ({"layers_to_transform": []}, "not a LoRA configuration"),
        ({"layers_to_transform": 1}, "not a LoRA configuration"),
        ({"layers_to_transform": [0, 2]}, r"adapts layers \[0, 2\]"),
        ({"layers_to_transform": [1, 2]}, "also adapts"),
    ],
)
def test_what_is_not_plain_lora_is_refused(
    change: dict[str, object], message: str, backbone: Backbone, tmp_path: Path
) -> None:
    folder = write(random_adapter(backbone, 0), backbone, tmp_path)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RememberingError, match=message):
        read_peft(folder, backbone)


def test_files_that_do_not_fit_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    folder = write(random_adapter(backbone, 0), backbone, tmp_path / "one")
    with pytest.raises(RememberingError, match="does not fit backbone 'bundled'"):
        read_peft(folder, Backbone.load())
    (folder / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(RememberingError, match="damaged"):
        read_peft(folder, backbone)


def test_merged_weights_are_those_of_the_backbone_and_adapter_in_use(backbone: Backbone) -> None:
    """They are kept between batches, but not for another adapter or another backbone."""
    first, second = (random_adapter(backbone, seed) for seed in (0, 1))
    bank = AdapterBank().with_adapter(0, first).with_adapter(1, second)
    other = copy.deepcopy(backbone)
    with torch.no_grad():
        for layer in other.layers:
            layer.qkv_weight.mul_(0.5)
    x = some_tokens(backbone, 3)
    for chosen in (0, 1, 0):
        for used in (backbone, other, backbone):
            numbers = torch.full((3,), chosen)
            with torch.inference_mode():
                kept = used.run(x, adapters=bank.mixed(numbers))
                fresh = used.run(x, adapters=bank[chosen].active())
            assert torch.equal(kept, fresh)
    assert bank.mixed(torch.zeros(2).long()) is bank.mixed(torch.zeros(3).long())
