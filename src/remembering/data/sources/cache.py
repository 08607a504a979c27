"""Decoded data sets on disk, so that only the first use of one downloads and decodes it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from remembering.data.sources.base import LabelledImages, Reader, Splits, reason
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.runtime.files import cache_dir


def read(name: str) -> Splits | None:
    """The data set if it is in the cache and whole."""
    try:
        tensors = load_file(_path(name))
        splits = Splits(
            LabelledImages(tensors["train_images"], tensors["train_labels"]),
            LabelledImages(tensors["test_images"], tensors["test_labels"]),
        )
    except (OSError, SafetensorError, KeyError):
        # Absent, truncated, damaged or of another version: the caller makes it anew.
        return None
    return splits


def write(name: str, splits: Splits) -> None:
    """Put the data set into the cache, whole or not at all."""
    path = _path(name)
    tensors = {
        f"{part}_{kind}": torch.as_tensor(getattr(data, kind)).contiguous()
        for part, data in (("train", splits.train), ("test", splits.test))
        for kind in ("images", "labels")
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-") as folder:
            unfinished = Path(folder) / path.name
            save_file(tensors, unfinished)
            unfinished.chmod(0o644)  # a cache may be shared; safetensors writes for its owner only
            # Without this a crash soon after may leave the name pointing at empty blocks.
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
    except (OSError, SafetensorError) as error:
        raise RememberingError(
            f"{name} cannot be written to the cache {path.parent} ({reason(error)}); "
            "make room there, or set REMEMBERING_CACHE to another folder"
        ) from error


def decoded_once(read_folder: Reader, *patterns: str) -> Reader:
    """A reader that decodes a folder the first time only, while its files stay as they are.

    Decoding the 60,000 small images of a published data set takes seconds, reading them from
    the cache none.
    """

    def read_or_decode(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
        name = f"decoded-{_fingerprint(folder, patterns, classes)}"
        splits = read(name)
        if splits is None:
            splits = read_folder(folder, classes)
            if splits is not None:
                # The data is there already; a full disk only makes the next time as slow.
                with contextlib.suppress(RememberingError):
                    write(name, splits)
        return splits

    return read_or_decode


def _fingerprint(folder: Path, patterns: tuple[str, ...], classes: tuple[Label, ...]) -> str:
    digest = hashlib.sha256(repr((str(folder.resolve()), classes)).encode())
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        state = path.lstat()
        digest.update(repr((str(path), state.st_size, state.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


def _path(name: str) -> Path:
    return cache_dir() / f"{name}.safetensors"
