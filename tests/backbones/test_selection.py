"""The backbone suits the images; letters are never selected for photos."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from remembering import RememberingTransformer
from remembering.backbones.selection import PHOTOS, SAMPLE, load_backbone, select_backbone
from remembering.errors import DownloadError, InvalidInputError

GREY = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
COLOUR = torch.randint(0, 256, (5, 3, 28, 28), dtype=torch.uint8)
LARGE = torch.randint(0, 256, (5, 1, 33, 20), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "name", "reason"),
    [
        (GREY, "bundled", "grey and at most 32 px"),
        (GREY.expand(-1, 3, -1, -1), "bundled", "grey and at most 32 px"),
        (COLOUR, PHOTOS, "colour"),
        (LARGE, PHOTOS, "20 x 33 px"),
        ([*GREY, LARGE[0]], PHOTOS, "20 x 33 px"),
        (GREY.repeat(SAMPLE, 1, 1, 1), "bundled", "grey"),
    ],
)
def test_selection(images: Tensor, name: str, reason: str) -> None:
    selection = select_backbone(images)
    assert selection.name == name
    assert reason in selection.reason


def test_no_images() -> None:
    with pytest.raises(InvalidInputError, match="no images"):
        select_backbone([])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which is offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def put(checkpoint: Path, cache: Path) -> None:
    """Add a checkpoint to the cache, as a download of the photo backbone would."""
    repository = cache / f"models--{PHOTOS.replace('/', '--')}"
    commit = "c" * 40
    shutil.copytree(checkpoint, repository / "snapshots" / commit)
    (repository / "snapshots" / commit / "preprocessor_config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)


def test_the_cached_backbone_is_used_offline(
    cache: Path, checkpoints: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    put(checkpoints["dinov2"], cache)
    with caplog.at_level(logging.INFO, "remembering"):
        model = RememberingTransformer.from_backbone("auto", images=COLOUR)
    assert model.backbone.name == PHOTOS
    assert model.backbone.revision == "c" * 40
    assert f"selected the backbone '{PHOTOS}': images in colour" in caplog.text


def test_offline_without_a_cache_no_other_backbone_is_used(cache: Path) -> None:
    with pytest.raises(DownloadError, match=r"go online once, or give a local folder") as error:
        load_backbone("auto", COLOUR)
    assert "bundled" not in str(error.value)
    assert "\n" not in str(error.value)
    assert load_backbone("auto", GREY).name == "bundled", "needs no hub"


def test_auto_needs_images() -> None:
    with pytest.raises(InvalidInputError, match=r"pass images=.*or name a backbone"):
        RememberingTransformer.from_backbone()
    with pytest.raises(InvalidInputError, match="only with the backbone 'auto'"):
        RememberingTransformer.from_backbone("bundled", images=GREY)
