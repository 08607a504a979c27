"""Measure the forward pass of batches in which each image uses its own adapter.

    python benchmarks/mixed_batch.py --backbone FOLDER

Compares with the bare forward pass of transformers on the same backbone and, for 20 adapters, with
the `adapter_names` forward pass of PEFT on the same weights.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import peft
import torch
from common import Row, compare, interleaved, load, parser, pixels, publish
from torch import Tensor

from remembering.adapters.bank import AdapterBank
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
GOALS = {1: 0.97, 8: 0.93}
PEFT_GOAL = 1.15  # for 20 adapters


def main() -> None:
    arguments = parser(__doc__).parse_args()
    rows: list[Row] = []
    for shape, size, batch, counts in (
        ("vit-tiny", 112, 64, (1, 5, 20, 100, 1000)),
        ("vit-tiny", 224, 64, (1, 20, 1000)),
        ("vit-base", 224, 4, (1, 20)),
    ):
        backbone, bare = load(arguments.backbone, size, shape)
        x = pixels(batch, size)
        for rank in (1, 8):
            for count in counts:
                what = f"{shape} {size} px, {batch} images, {count} adapters of rank {rank}"
                rows += _measure(what, backbone, bare, x, count, rank, arguments.turns)
    publish("Mixed batch", rows, arguments.json)


def bank_of(backbone: Backbone, count: int, rank: int, first_layer: int = 0) -> AdapterBank:
    """Return random adapters whose B is not zero."""
    rng = torch.Generator().manual_seed(0)
    adapters = {}
    for number in range(count):
        adapters[number] = Adapter.new(backbone, rank, first_layer, rng)
        adapters[number].b.normal_(0, 0.02, generator=rng)
    return AdapterBank(adapters)


@torch.inference_mode()
def ours(backbone: Backbone, bank: AdapterBank, x: Tensor, numbers: Tensor) -> Tensor:
    """Return the pooled output of our backbone, each image under its own adapter."""
    tokens = backbone.embed_pixels(x)
    return backbone.pool(backbone.finish(tokens, adapters=bank.mixed(numbers)))


@torch.inference_mode()
def theirs(model: Any, x: Tensor, **options: Any) -> Tensor:
    """Return the CLS token of the model of transformers or PEFT."""
    last: Tensor = model(pixel_values=x, interpolate_pos_encoding=True, **options).last_hidden_state
    return last[:, 0]


def _measure(
    what: str, backbone: Backbone, bare: Any, x: Tensor, count: int, rank: int, turns: int
) -> list[Row]:
    bank = bank_of(backbone, count, rank)
    numbers = torch.randint(0, count, (len(x),), generator=torch.Generator().manual_seed(1))
    candidates = {
        "ours": partial(ours, backbone, bank, x, numbers),
        "bare": partial(theirs, bare, x),
    }
    if count == 20:
        wrapped = with_peft(copy.deepcopy(bare), bank, numbers, backbone)  # PEFT changes the model
        names = [str(n) for n in numbers.tolist()]
        candidates["peft"] = partial(theirs, wrapped, x, adapter_names=names)
        torch.testing.assert_close(candidates["ours"](), candidates["peft"](), rtol=1e-4, atol=1e-4)
    times = interleaved(candidates, turns)
    rows = [compare(what, times["ours"], "bare backbone", times["bare"], GOALS[rank])]
    if "peft" in times:
        rows.append(compare(what, times["ours"], "PEFT", times["peft"], PEFT_GOAL))
    return rows


def with_peft(bare: Any, bank: AdapterBank, numbers: Tensor, backbone: Backbone) -> Any:
    """Return a PEFT model with the adapters that the batch uses."""
    some = next(iter(bank.values()))
    config = peft.LoraConfig(r=some.rank, lora_alpha=some.rank, target_modules=TARGETS)
    used = numbers.unique().tolist()
    wrapped = peft.get_peft_model(bare, config, adapter_name=str(used[0]))
    for number in used[1:]:
        wrapped.add_adapter(str(number), config)
    modules = dict(wrapped.base_model.model.named_modules())
    for index in range(backbone.depth):
        for p, name in enumerate(backbone.family.projections(index)):
            for number in used:
                modules[name].lora_A[str(number)].weight.data = bank[number].a[index, p]
                modules[name].lora_B[str(number)].weight.data = bank[number].b[index, p]
    return wrapped.eval()


if __name__ == "__main__":
    main()
