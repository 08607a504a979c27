"""Training of an adapter and its head against PEFT and a loop of its own."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from support import make_task, read_peft

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import to_peft
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import TrainingSet, shuffled, train


@pytest.mark.parametrize("first_layer", [0, 1])
def test_training_is_that_of_peft(
    first_layer: int, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Three epochs of two steps: AdamW on cross entropy, with transformers' own forward pass."""
    backbone, task = Backbone.load(checkpoints["vit"]), make_task(per_class=8)
    settings = Settings.paper(
        rank=2, epochs=3, batch_size=8, lr=1e-2, weight_decay=0.05, first_layer=first_layer
    )
    start = Adapter.new(backbone, 2, first_layer, torch.Generator().manual_seed(0))
    head = Head.linear(task.classes, backbone)
    tokens = TokenCache(backbone, task.images, first_layer)
    adapter, head = train(
        backbone, start, head, TrainingSet(tokens, task.targets, "task", 0), settings
    )

    for name, data in to_peft(start, backbone).items():
        (tmp_path / name).write_bytes(data)
    base = transformers.ViTModel.from_pretrained(checkpoints["vit"]).eval()
    model = peft.PeftModel.from_pretrained(base, tmp_path, is_trainable=True)
    linear = torch.nn.Linear(backbone.dim, len(task.classes))
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == start.parameters
    optimizer = torch.optim.AdamW([*trained, *linear.parameters()], lr=1e-2, weight_decay=0.05)
    for epoch in range(3):
        for index in shuffled(len(task), settings, 0, epoch):
            pixels = backbone.preprocessing.normalise(task.images[index])
            features = model(pixels).last_hidden_state[:, 0]
            optimizer.zero_grad()
            F.cross_entropy(linear(features), task.targets[index]).backward()
            optimizer.step()
    model.save_pretrained(tmp_path / "trained")
    theirs = read_peft(tmp_path / "trained", backbone)
    assert float((theirs.b - start.b).abs().max()) > 0.01
    for ours, other in (
        (adapter.a, theirs.a),
        (adapter.b, theirs.b),
        (head.weight, linear.weight),
        (head.bias, linear.bias),
    ):
        torch.testing.assert_close(ours, other.detach(), rtol=1e-3, atol=1e-3)
