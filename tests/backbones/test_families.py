"""Every supported family equals transformers at every layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support import FAMILIES, make_task

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.backbones.families import CONFIG_KEYS
from remembering.model import RememberingTransformer


def reference_states(folder: Path, pixels: torch.Tensor) -> list[torch.Tensor]:
    """All states of transformers' forward pass, and the last one normalised."""
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    base = model.base_model if hasattr(model, "classifier") else model
    options = {} if "dinov" in base.config.model_type else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        out = base(pixels, output_hidden_states=True, **options)
    return [*out.hidden_states, out.last_hidden_state]


@pytest.mark.parametrize("size", [16, 24])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers_at_every_layer(
    family: str, size: int, checkpoints: dict[str, Path]
) -> None:
    backbone = Backbone.load(checkpoints[family], image_size=size)
    images = torch.randint(0, 256, (3, 3, 20, 30), dtype=torch.uint8)
    pixels = backbone.preprocessing.normalise(backbone.prepare(images))
    states = reference_states(checkpoints[family], pixels)
    tokens = backbone.embed(images)
    for i in range(backbone.depth + 1):
        reached = backbone.run(tokens, stop=i)
        last = backbone.run(reached, start=i)
        if not backbone.family.cls_token:  # the mean of the patches comes first
            torch.testing.assert_close(reached[:, 0], reached[:, 1:].mean(1))
            torch.testing.assert_close(last[:, 1:], states[backbone.depth], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(reached[:, 1:], states[i], rtol=1e-5, atol=1e-5)
            continue
        torch.testing.assert_close(reached, states[i], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(last, states[backbone.depth], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_finish_gives_heads_what_the_last_state_would(
    family: str, checkpoints: dict[str, Path]
) -> None:
    backbone = Backbone.load(checkpoints[family])
    tokens = backbone.embed(torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8))
    adapter = Adapter.new(backbone, 2, 1, torch.Generator().manual_seed(0))
    adapter.b.normal_(0, 0.1)
    for active in (None, adapter.active()):
        whole = backbone.run(tokens, adapters=active)
        end = backbone.finish(tokens, adapters=active)
        torch.testing.assert_close(backbone.pool(end), backbone.pool(whole), rtol=1e-4, atol=1e-5)
        if backbone.classifier is not None:
            cls, expected = backbone.classifier_input(end), backbone.classifier_input(whole)
            torch.testing.assert_close(cls, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "pooled"), [("siglip", "pooler_output"), ("siglip-headless", None), ("ijepa", None)]
)
def test_without_a_cls_token_heads_read_pooled_patches(
    family: str, pooled: str | None, checkpoints: dict[str, Path]
) -> None:
    backbone = Backbone.load(checkpoints[family])
    pixels = torch.rand(2, 3, 16, 16)
    name = json.loads((checkpoints[family] / "config.json").read_text())["architectures"][0]
    with torch.no_grad():
        output = getattr(transformers, name).from_pretrained(checkpoints[family]).eval()(pixels)
        expected = output[pooled] if pooled else output.last_hidden_state.mean(1)
        end = backbone.finish(backbone.embed_pixels(pixels))
        torch.testing.assert_close(backbone.pool(end), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_the_vision_tower_of_a_larger_checkpoint_is_loaded(
    family: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """As on the hub: text and vision tower in one file, the vision tower under a prefix."""
    spec = json.loads((checkpoints[family] / "config.json").read_text())
    weights = load_file(checkpoints[family] / "model.safetensors")
    whole = {"model_type": family, "vision_config": spec, "text_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    prefix = "" if any(key.startswith("vision_model.") for key in weights) else "vision_model."
    towers = {prefix + key: value for key, value in weights.items()}
    towers["text_model.embeddings.weight"] = torch.zeros(2, 8)
    save_file(towers, tmp_path / "model.safetensors")
    alone = Backbone.load(checkpoints[family])
    assert Backbone.load(tmp_path).fingerprint() == alone.fingerprint()


@pytest.mark.parametrize("size", [224, 112])
def test_equals_transformers_on_the_pretrained_vit(size: int, vit_tiny: Path) -> None:
    backbone = Backbone.load(vit_tiny, image_size=size)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    pixels = backbone.preprocessing.normalise(backbone.prepare(images))
    states = reference_states(vit_tiny, pixels)
    last = backbone.run(backbone.run(backbone.embed(images), stop=5), start=5)
    torch.testing.assert_close(backbone.final_norm(last), states[-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(backbone.pool(last), states[-1][:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["vit-classifier", "dinov2-swiglu-classifier"])
def test_the_frozen_classifier_gives_transformers_logits(
    family: str, checkpoints: dict[str, Path]
) -> None:
    backbone = Backbone.load(checkpoints[family])
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    pixels = backbone.preprocessing.normalise(images)
    name = json.loads((checkpoints[family] / "config.json").read_text())["architectures"][0]
    with torch.no_grad():
        wanted = getattr(transformers, name).from_pretrained(checkpoints[family])(pixels).logits
        features = backbone.classifier_input(backbone.run(backbone.embed(images)))
        torch.testing.assert_close(backbone.require_classifier()(features), wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_is_that_of_transformers(
    family: str, checkpoints: dict[str, Path]
) -> None:
    """`CONFIG_KEYS` leaves out no key that changes the architecture."""
    spec = json.loads((checkpoints[family] / "config.json").read_text())
    ignored = {key for key in spec if key not in CONFIG_KEYS}
    harmless = {"apply_layernorm", "architectures", "encoder_stride", "initializer_factor"}
    harmless |= {"initializer_range", "model_type", "out_features", "out_indices"}
    harmless |= {"reshape_hidden_states", "stage_names", "transformers_version"}
    harmless |= {f"pos_embed_{name}" for name in ("shift", "jitter", "rescale")}  # in training
    assert ignored <= harmless


@pytest.mark.parametrize("family", ["dinov3", "siglip", "siglip-headless", "ijepa", "metaclip"])
def test_a_model_on_any_family_learns_and_is_restored(
    family: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """With the default router, which reads deep states; answers are the same bits after loading."""
    model = RememberingTransformer.from_backbone(checkpoints[family], epochs=1)
    for number in range(2):
        model.learn(make_task(number, (f"a{number}", f"b{number}")))
    images = make_task(1).images
    model.save(tmp_path / "model")
    restored = RememberingTransformer.load(tmp_path / "model")
    one, other = (m.predict(images).probabilities for m in (model, restored))
    assert one.isfinite().all()
    assert torch.equal(one, other)
