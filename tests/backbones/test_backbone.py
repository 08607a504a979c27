"""A frozen backbone: layers, preprocessing, checkpoints from folders and the hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from remembering.adapters.lora import Adapter
from remembering.backbones import preprocessing
from remembering.backbones.backbone import Backbone
from remembering.backbones.families import FAMILIES as FAMILY
from remembering.errors import InvalidInputError, RememberingError
from remembering.runtime import hub


def test_the_default_size_is_that_of_the_preprocessing(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """DINOv2 on the hub was trained at 518 px, but its images are cropped to 224 px."""
    folder = tmp_path / "dinov2"
    shutil.copytree(checkpoints["dinov2"], folder)
    crop = {"size": {"shortest_edge": 14}, "do_center_crop": True}
    for size, expected in ((12, 12), (13, 16)):  # 13 is not a multiple of the patch size
        spec = crop | {"crop_size": {"height": size, "width": size}}
        (folder / "preprocessor_config.json").write_text(json.dumps(spec))
        assert Backbone.load(folder).image_size == expected
    assert Backbone.load(folder, image_size=24).image_size == 24


def test_states_visits_each_depth_once(backbone: Backbone) -> None:
    tokens = backbone.embed(torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8))
    for i, state in zip((0, 2, 3), backbone.states(tokens, (0, 2, 3)), strict=True):
        torch.testing.assert_close(state, backbone.run(tokens, stop=i))


def test_the_bundled_backbone_loads() -> None:
    backbone = Backbone.load()
    assert backbone.image_size == 28
    assert backbone.embed(torch.zeros(1, 1, 28, 28, dtype=torch.uint8)).shape == (1, 17, 96)


def test_is_frozen_and_in_eval_mode(backbone: Backbone) -> None:
    assert not backbone.training
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_gradients_reach_an_adapter_but_not_the_backbone(backbone: Backbone) -> None:
    adapter = Adapter.new(backbone, 2, 1, torch.Generator().manual_seed(0)).trainable()
    tokens = backbone.embed(torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8))
    backbone.run(tokens, adapters=adapter.active()).sum().backward()
    assert adapter.b.grad is not None
    assert adapter.b.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in backbone.parameters())


PROCESSORS: dict[str, dict[str, Any]] = {
    "DeiT": {
        "feature_extractor_type": "DeiTFeatureExtractor",
        "size": 20,
        "crop_size": 16,
        "do_center_crop": True,
    },
    "CLIP": {
        "feature_extractor_type": "CLIPFeatureExtractor",
        "size": 20,
        "crop_size": 16,
        "do_center_crop": True,
    },
    "ViT": {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 16, "width": 16},
        "do_normalize": False,
    },
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_prepares_images_as_transformers_does(
    kind: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Checked on images that are not square; pixels differ by rounding only."""
    folder = tmp_path / kind
    shutil.copytree(checkpoints[kind.lower()], folder)
    spec: dict[str, Any] = {
        "resample": 3,
        "do_normalize": True,
        "do_resize": True,
        "do_rescale": True,
    }
    spec |= {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 1.0, 2.0]}
    (folder / "preprocessor_config.json").write_text(json.dumps(spec | PROCESSORS[kind]))
    small = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((90, 50), Image.Resampling.BICUBIC)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    theirs = processor(image, return_tensors="pt")["pixel_values"]
    backbone = Backbone.load(folder)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    ours = backbone.preprocessing.normalise(backbone.prepare(pixels))
    assert float((theirs - ours).abs().max()) < 0.02


def test_a_long_thin_image_takes_no_more_memory(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "clip"
    shutil.copytree(checkpoints["clip"], folder)
    spec = {"size": {"shortest_edge": 20}, "crop_size": 16, "do_center_crop": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(spec))
    backbone, sizes = Backbone.load(folder), []
    resize = preprocessing._resize

    def watched(images: torch.Tensor, size: tuple[int, int], mode: str) -> torch.Tensor:
        sizes.append(size)
        return resize(images, size, mode)

    monkeypatch.setattr(preprocessing, "_resize", watched)
    image = torch.arange(6000, dtype=torch.uint8).expand(1, 3, 2, 6000)
    assert backbone.prepare(image).shape == (1, 3, 16, 16)
    assert sizes == [(20, 160)]


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 16, 16), (1, 5, 9), (3, 40, 30), (3, 1, 1)])
def test_takes_images_of_any_size_and_channel_count(
    shape: tuple[int, ...], backbone: Backbone
) -> None:
    image = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert backbone.embed(image).shape == (2, 17, 32)
    torch.testing.assert_close(
        backbone.embed(image), backbone.embed(image.float() / 255), rtol=1e-2, atol=2e-2
    )


def test_grey_is_repeated_and_colour_becomes_grey(backbone: Backbone) -> None:
    grey = torch.randint(0, 256, (2, 1, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(backbone.embed(grey), backbone.embed(grey.expand(-1, 3, -1, -1)))
    bundled = Backbone.load()
    torch.testing.assert_close(bundled.embed(grey), bundled.embed(grey.expand(-1, 3, -1, -1)))


def test_a_list_of_sizes_equals_one_by_one(backbone: Backbone) -> None:
    images = [torch.randint(0, 256, (3, s, s + 2), dtype=torch.uint8) for s in (9, 16, 33)]
    together = backbone.embed(images)
    for image, tokens in zip(images, together, strict=True):
        torch.testing.assert_close(backbone.embed(image[None])[0], tokens)


def test_resizing_follows_pil(vit_tiny: Path) -> None:
    backbone = Backbone.load(vit_tiny)
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (50, 80, 3), dtype=np.uint8)
    by_pil = np.array(Image.fromarray(array).resize((224, 224), Image.Resampling.BILINEAR))
    ours = backbone.prepare(torch.from_numpy(array).permute(2, 0, 1)[None])[0].permute(1, 2, 0)
    difference = np.abs(by_pil.astype(int) - ours.numpy().astype(int))
    assert difference.max() <= 1
    assert difference.mean() < 0.2  # PIL rounds between its two passes


def test_shortest_edge_and_centre_crop(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "clip"
    shutil.copytree(checkpoints["clip"], folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "size": {"shortest_edge": 20},
                "crop_size": {"height": 16, "width": 16},
                "do_center_crop": True,
                "resample": 3,
                "image_mean": [0.1, 0.2, 0.3],
                "image_std": [1.0, 2.0, 4.0],
            }
        )
    )
    backbone = Backbone.load(folder)
    array = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    by_pil = Image.fromarray(array).resize((30, 20), Image.Resampling.BICUBIC)
    wanted = np.array(by_pil.crop((7, 2, 23, 18))).astype(int)
    ours = backbone.prepare(torch.from_numpy(array).permute(2, 0, 1)[None])
    assert np.abs(ours[0].permute(1, 2, 0).numpy().astype(int) - wanted).max() <= 1
    small = backbone.shrink(torch.from_numpy(array).permute(2, 0, 1)[None])
    assert small.shape == (1, 3, 20, 20)
    assert torch.equal(backbone.prepare(small), ours)
    white = backbone.preprocessing.normalise(torch.full((1, 3, 16, 16), 255, dtype=torch.uint8))
    torch.testing.assert_close(white[0, :, 0, 0], torch.tensor([0.9, 0.4, 0.175]))
    assert Backbone.load(folder, image_size=32).preprocessing.edge == 40


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"size": "x"}', '{"image_mean": ["a"]}', '{"resample": 99}']
)
def test_a_damaged_preprocessor_is_named(
    text: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "vit"
    shutil.copytree(checkpoints["vit"], folder)
    (folder / "preprocessor_config.json").write_text(text)
    with pytest.raises(
        RememberingError,
        match=r"preprocessor_config\.json is not (valid|a usable)",
    ):
        Backbone.load(folder)


def test_a_hub_name_brings_its_own_preprocessing(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked with a hand-made cache of the hub; a missing file is not replaced by defaults."""
    from huggingface_hub import constants

    repository = tmp_path / "models--someone--vit"
    snapshot = repository / "snapshots" / "abc"
    shutil.copytree(checkpoints["vit"], snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RememberingError, match="go online once"):
        Backbone.load("someone/vit")
    (snapshot / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3]}')
    assert Backbone.load("someone/vit").preprocessing.mean == (0.1, 0.2, 0.3)


def test_the_revision_is_the_commit_in_the_cache(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    commits = {"main": "a" * 40, "v1": "b" * 40}
    repository = tmp_path / "models--someone--vit"
    (repository / "refs").mkdir(parents=True)
    for (name, commit), family in zip(commits.items(), ("vit", "deit"), strict=True):
        shutil.copytree(checkpoints[family], repository / "snapshots" / commit)
        (repository / "refs" / name).write_text(commit)
        # The cache records that a file does not exist on the hub.
        (repository / ".no_exist" / commit).mkdir(parents=True)
        (repository / ".no_exist" / commit / "preprocessor_config.json").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision, expected in ((None, "main"), ("v1", "v1"), (commits["v1"], "v1")):
        backbone = Backbone.load("someone/vit", revision=revision)
        assert backbone.revision == commits[expected]
        assert (backbone.family is FAMILY["deit"]) == (expected == "v1")
    with pytest.raises(RememberingError, match="cannot be reached"):
        Backbone.load("someone/vit", revision="v2")


def test_a_local_folder_has_no_revision(checkpoints: dict[str, Path]) -> None:
    assert Backbone.load(checkpoints["vit"]).revision is None
    with pytest.raises(InvalidInputError, match="'main' applies to the model hub"):
        Backbone.load(checkpoints["vit"], revision="main")


def test_sharded_weights_are_loaded(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    model = transformers.ViTModel.from_pretrained(checkpoints["vit"])
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert Backbone.load(tmp_path).fingerprint() == Backbone.load(checkpoints["vit"]).fingerprint()
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(RememberingError, match="has no file model-00002"):
        Backbone.load(tmp_path)


def test_the_fingerprint_tells_weights_apart(checkpoints: dict[str, Path]) -> None:
    one, same = Backbone.load(checkpoints["vit"]), Backbone.load(checkpoints["vit"])
    assert one.fingerprint() == same.fingerprint()
    with torch.no_grad():
        same.layers[1].qkv_weight[0, 0] += 1  # type: ignore[index]
    assert one.fingerprint() != same.fingerprint()


def test_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(RememberingError, match=r"cannot be reached; go online.*local folder"):
        Backbone.load("nobody/no-such-vit")


@pytest.mark.parametrize(
    ("name", "message"),
    [("/no/such/folder", "no backbone folder"), ("./nothing", "no backbone folder")],
)
def test_a_missing_folder_is_named(name: str, message: str) -> None:
    with pytest.raises(RememberingError, match=message):
        Backbone.load(name)


def test_other_kinds_and_damaged_folders_are_refused(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(RememberingError, match=r"no config\.json"):
        Backbone.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(RememberingError, match=r"model type 'bert', .* supported are vit"):
        Backbone.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "beit"}')
    with pytest.raises(RememberingError, match=r"'beit'.*relative position.*supported are vit"):
        Backbone.load(tmp_path)
    folder = tmp_path / "cut"
    shutil.copytree(checkpoints["vit"], folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RememberingError, match="cannot be loaded"):
        Backbone.load(folder)


def test_an_image_size_that_does_not_fit_is_refused(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(RememberingError, match="multiple of its patch size 4"):
        Backbone.load(checkpoints["vit"], image_size=18)
