"""Fuzz targets: what reads a file that anyone may have written.

A target takes the content of a file. It may raise `RememberingError`; any other exception, a
crash, more memory or more time than allowed, or a value that is not finite is a defect.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
import torch
from PIL import Image
from support import TWO_LEVEL, learned, make_checkpoint, make_task

from remembering.backbones.backbone import Backbone
from remembering.data.decoding import FORMATS, read_image
from remembering.data.paths import load_tasks
from remembering.data.sources.base import Source
from remembering.data.sources.folder import load_folder
from remembering.data.sources.idx import read_idx
from remembering.data.sources.parquet import read_parquet_folder
from remembering.errors import RememberingError
from remembering.experiments import spec
from remembering.experiments.folder import CONFIG, read_config
from remembering.model import RememberingTransformer
from remembering.runtime.files import sha256

__all__ = ["TARGETS", "RememberingError", "Target"]


@dataclass(frozen=True)
class Target:
    """A reader with valid inputs to start from; `structured` ones contain JSON."""

    run: Callable[[bytes], object]
    seeds: Sequence[bytes]
    structured: bool = False


def _model(work: Path) -> tuple[Path, Callable[[], None]]:
    """Save a model; return its folder, and a function that loads and uses what is there."""
    torch.set_num_threads(1)
    backbone = Backbone.load(make_checkpoint("vit", work / "backbone"))
    model = learned(backbone, 2, **{**TWO_LEVEL, "memory": 4})
    model.save(work / "model")
    images = make_task(1).images[:2]

    def use() -> None:
        model = RememberingTransformer.load(work / "model", backbone=backbone)
        prediction = model.predict(images, false_alarm_rate=0.1)
        assert prediction.novelty is not None
        assert prediction.probabilities.isfinite().all()
        assert prediction.novelty.isfinite().all()
        for memory in model.state.memories.values():
            assert len(memory.images) == len(memory.labels)

    return work / "model", use


def manifest(work: Path) -> Target:
    """The manifest of a model folder."""
    folder, use = _model(work)
    path = folder / "manifest.json"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        use()

    return Target(run, [path.read_bytes()], structured=True)


def artifact(work: Path) -> Target:
    """An artifact of a model folder whose hashes are consistent; the first byte says which."""
    folder, use = _model(work)
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    files = {name: (folder / name).read_bytes() for name in sorted(content["files"])}
    names = [*files]

    def run(data: bytes) -> None:
        name, data = names[data[0] % len(names)] if data else names[0], data[1:]
        entry = {"sha256": sha256(data), "bytes": len(data)}
        changed = {**content, "files": {**content["files"], name: entry}}
        path.write_text(json.dumps(changed))
        (folder / name).write_bytes(data)
        try:
            use()
        finally:
            (folder / name).write_bytes(files[name])

    seeds = [bytes([i]) + data for i, data in enumerate(files.values())]
    return Target(run, seeds, structured=True)


def image(work: Path) -> Target:
    """An image file."""
    seeds = []
    for kind in FORMATS:
        for mode in ("RGB", "L"):
            file = io.BytesIO()
            Image.effect_noise((12, 9), 60).convert(mode).save(file, kind)
            seeds.append(file.getvalue())
    path = work / "image"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        assert read_image(path).dtype == torch.uint8

    return Target(run, seeds)


def toml(work: Path) -> Target:
    """The file of an experiment, and that of a run."""
    path, run_path = work / "experiment.toml", work / CONFIG

    def run(data: bytes) -> None:
        path.write_bytes(data)
        run_path.write_bytes(data)
        try:
            read_config(work)
        except RememberingError:
            file = spec.find(str(path))
            file.variants()
            file.variants(small=True)

    names = ("digits-5", "paper/capacity", "paper/fusion")
    return Target(run, [spec.find(name).path.read_bytes() for name in names])


def idx(work: Path) -> Target:
    """An idx file, plain or gzipped."""
    plain = bytes([0, 0, 8, 3]) + struct.pack(">3I", 4, 2, 3) + bytes(range(24))

    def run(data: bytes) -> None:
        path = work / ("file.gz" if data[:2] == b"\x1f\x8b" else "file")
        path.write_bytes(data)
        assert read_idx(path, 3).ndim == 3

    return Target(run, [plain, gzip.compress(plain, mtime=0)])


def _dataset() -> datasets.Dataset:
    """Four images of two classes."""
    datasets.disable_progress_bars()
    images = []
    for value in range(4):
        file = io.BytesIO()
        Image.new("L", (4, 4), value).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    names = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    columns = {"image": images, "label": [0, 1, 0, 1]}
    return datasets.Dataset.from_dict(columns, features=features)


def _use(source: Source) -> None:
    for part in (source.train, source.test):
        assert len([*part.images[torch.arange(len(part))]]) == len(part)


def parquet(work: Path) -> Target:
    """A Parquet file, of a data set of the user or a published one."""
    folder = work / "parquet"
    folder.mkdir()
    _dataset().to_parquet(work / "seed.parquet")

    def run(data: bytes) -> None:
        for part in ("train", "test"):
            (folder / f"{part}-0.parquet").write_bytes(data)
        splits = read_parquet_folder(folder, ("cat", "dog"))
        assert splits is not None
        _use(Source("published", splits.train, splits.test, ("cat", "dog")))

    return Target(run, [(work / "seed.parquet").read_bytes()])


def table(work: Path) -> Target:
    """A table of images and labels, Parquet or CSV."""
    made = _dataset()
    made.to_parquet(work / "seed.parquet")
    (work / "a.png").write_bytes(made.with_format("arrow")[:1]["image"][0]["bytes"].as_py())
    csv = b"path,label,task\na.png,cat,t\na.png,dog,t\n"

    def run(data: bytes) -> None:
        path = work / ("table.parquet" if data[:4] == b"PAR1" else "table.csv")
        path.write_bytes(data)
        for task in load_tasks(path):
            assert len([*task.images[torch.arange(len(task))]]) == len(task.labels)

    return Target(run, [(work / "seed.parquet").read_bytes(), csv])


def dataset(work: Path) -> Target:
    """A file of a data set as written by `save_to_disk`; the first byte says which."""
    folder = work / "saved"
    _dataset().save_to_disk(folder)
    files = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    paths = [*files]

    def run(data: bytes) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        changed = paths[data[0] % len(paths)] if data else paths[0]
        for path, content in files.items():
            path.write_bytes(data[1:] if path == changed else content)
        _use(load_folder(folder))

    seeds = [bytes([i]) + content for i, content in enumerate(files.values())]
    return Target(run, seeds, structured=True)


TARGETS: dict[str, Callable[[Path], Target]] = {
    function.__name__: function
    for function in (manifest, artifact, image, toml, idx, parquet, table, dataset)
}
