"""A cache of decoded data sets on disk, with checksums.

A data set is downloaded and decoded once. Each file stores the SHA-256 of its tensors, which is
verified whenever it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from remembering.data.sources.base import LabelledImages, Reader, Splits
from remembering.data.task import Label
from remembering.errors import InvalidFileError, RememberingError, StorageError, reason
from remembering.runtime.files import cache_dir
from remembering.runtime.reading import require_regular

_TENSORS = ("test_images", "test_labels", "train_images", "train_labels")


def read(name: str) -> Splits | None:
    """Return a data set from the cache.

    Returns:
        None if it is not in the cache. A file that fails its checksum is removed with a warning.
    """
    path = _path(name)
    if not path.exists():
        return None
    try:
        require_regular(path)
        with safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get("sha256")
            tensors = {key: file.get_tensor(key) for key in _TENSORS}
        if expected != _checksum(tensors):
            raise InvalidFileError("its checksum does not match")
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"the cached data set {path} is damaged ({reason(error)}); it is removed and "
            "obtained again",
            stacklevel=2,
        )
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return Splits(
        LabelledImages(tensors["train_images"], tensors["train_labels"]),
        LabelledImages(tensors["test_images"], tensors["test_labels"]),
    )


def write(name: str, splits: Splits) -> None:
    """Write a data set to the cache atomically.

    Raises:
        StorageError: If the file cannot be written.
    """
    path = _path(name)
    tensors = {
        f"{part}_{kind}": torch.as_tensor(getattr(data, kind)).contiguous()
        for part, data in (("train", splits.train), ("test", splits.test))
        for kind in ("images", "labels")
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-") as folder:
            unfinished, plain = Path(folder) / path.name, Path(folder) / "plain"
            save_file(tensors, unfinished, metadata={"sha256": _checksum(tensors)})
            # safetensors creates files for their owner only; a cache may be shared.
            plain.touch()
            unfinished.chmod(plain.stat().st_mode)
            # Without this, a crash soon after could leave the name of a file without content.
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{name} cannot be written to the cache {path.parent} ({reason(error)}); "
            "free some space there, or set REMEMBERING_CACHE to another folder"
        ) from error


def decoded_once(read_folder: Reader, *patterns: str) -> Reader:
    """Wrap a reader so that a folder is decoded once, as long as its files do not change.

    Args:
        read_folder: The reader.
        patterns: Which files of a folder it reads. Their sizes and times identify the content.
    """

    def read_or_decode(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
        name = f"decoded-{_fingerprint(folder, patterns, classes)}"
        splits = read(name)
        if splits is None:
            splits = read_folder(folder, classes)
            if splits is not None:
                # The data is available already; without the cache it is only decoded again.
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


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, tensor in sorted(tensors.items()):
        digest.update(repr((key, tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _path(name: str) -> Path:
    return cache_dir() / f"{name}.safetensors"
