"""Measure one training step of an adapter (forward, backward, AdamW) against LoRA of PEFT.

    python benchmarks/training_step.py --backbone FOLDER

Both use the same backbone, target modules (Q, K, V, O of every layer), rank, head, optimiser and
batch of 64. The input is pixels: the frozen embedding is part of the step.
"""

from __future__ import annotations

from typing import Any

import peft
import torch
import torch.nn.functional as F
from common import Row, compare, interleaved, load, parser, pixels, publish
from mixed_batch import TARGETS
from torch import Tensor, nn

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.learning.training import adapted

BATCH, CLASSES = 64, 10


class Ours:
    """An adapter of this library and a head."""

    def __init__(self, backbone: Backbone, rank: int):
        self.backbone = backbone
        rng = torch.Generator().manual_seed(0)
        self.adapter = Adapter.new(backbone, rank, 0, rng).trainable()
        self.head = nn.Linear(backbone.dim, CLASSES)
        parameters = [self.adapter.a, self.adapter.b, *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    def step(self, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            tokens = self.backbone.embed_pixels(x)
        features = self.backbone.pool(adapted(self.backbone, self.adapter, tokens))
        self.optimizer.zero_grad()
        F.cross_entropy(self.head(features), y).backward()
        self.optimizer.step()


class Peft:
    """A PEFT model and a head."""

    def __init__(self, bare: Any, rank: int):
        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS)
        self.model = peft.get_peft_model(bare, config)
        self.head = nn.Linear(bare.config.hidden_size, CLASSES)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW([*trained, *self.head.parameters()], lr=1e-3)

    def step(self, x: Tensor, y: Tensor) -> None:
        output = self.model(pixel_values=x, interpolate_pos_encoding=True)
        self.optimizer.zero_grad()
        F.cross_entropy(self.head(output.last_hidden_state[:, 0]), y).backward()
        self.optimizer.step()


def main() -> None:
    arguments = parser(__doc__).parse_args()
    rows: list[Row] = []
    y = torch.arange(BATCH) % CLASSES
    for size, rank in ((112, 1), (112, 8), (224, 1)):
        backbone, bare = load(arguments.backbone, size)
        x, ours, theirs = pixels(BATCH, size), Ours(backbone, rank), Peft(bare, rank)
        times = interleaved(
            {
                "ours": lambda x=x, ours=ours: ours.step(x, y),
                "peft": lambda x=x, theirs=theirs: theirs.step(x, y),
            },
            arguments.turns,
        )
        goal = 1.25 if rank == 1 else None
        rows.append(compare(f"{size} px, rank {rank}", times["ours"], "PEFT", times["peft"], goal))
    publish("Training step", rows, arguments.json)


if __name__ == "__main__":
    main()
