"""Read the user's own data: class folders, Parquet files, or the output of `save_to_disk`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from remembering.data.columns import Label, dataset_columns, dataset_labels
from remembering.data.folders import TEST_PARTS, class_folders
from remembering.data.images import DatasetImages, ImageSequence
from remembering.data.sources.base import (
    LabelledImages,
    Source,
    Splits,
    hold_out,
    is_present,
)
from remembering.data.sources.parquet import check_arrow, parquet_files
from remembering.data.sources.stacking import positions, stack
from remembering.errors import InvalidFileError, reason
from remembering.runtime.reading import read_json, require_regular

Part = tuple[ImageSequence, Sequence[Label]]


def load_folder(folder: Path) -> Source:
    """Load a folder in one of these layouts.

    - `train/` and `test/` (or `validation/`, `valid/`, `val/`), each with one folder per class;
    - one folder per class;
    - `train-*.parquet` and `test-*.parquet`, here or in `data/`, as on the hub;
    - the output of `save_to_disk` of the `datasets` library.

    Without a test split, a fifth of the images of each class is held out; see `hold_out`.

    Raises:
        InvalidFileError: If the folder is in another layout or damaged.
    """
    parts = _dataset_parts(folder) or _class_folder_parts(folder)
    name = folder.resolve().name
    train, *test = (parts[part] for part in ("train", *TEST_PARTS) if part in parts)
    classes = tuple(sorted(set(train[1])))
    splits = (
        Splits(_labelled(train, classes), _labelled(test[0], classes))
        if test
        else hold_out(_labelled(train, classes), classes, str(folder))
    )
    return Source(name, splits.train, splits.test, classes)


def read_class_folders(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """Read and decode a published data set of small images, as class folders in train/ and test/.

    Returns:
        None if the folder is in another layout.
    """
    parts = _train_and_test(folder)
    if parts is None:
        return None
    decoded = []
    for part in parts:
        images, labels = class_folders(part)
        pixels = stack(images, str(part))
        decoded.append(LabelledImages(pixels, positions(labels, classes, str(part))))
    return Splits(*decoded)


def _dataset_parts(folder: Path) -> dict[str, Part]:
    """Read the splits of a folder in a layout of the `datasets` library; empty if it is not."""
    if any(is_present(folder / name) for name in ("dataset_dict.json", "state.json")):
        from datasets import load_from_disk

        try:
            _check_saved(folder)
            dataset = load_from_disk(str(folder))
            # A dataset saved without splits is training data.
            parts: dict[str, Any] = dataset if isinstance(dataset, dict) else {"train": dataset}
            for part in parts.values():
                check_arrow(part)
        except Exception as error:
            raise _unreadable(folder, error) from error
    else:
        files = parquet_files(folder) or parquet_files(folder / "data")
        if not files:
            return {}
        from datasets import load_dataset

        names = {part: [str(path) for path in paths] for part, paths in files.items()}
        try:
            parts = load_dataset("parquet", data_files=names)
            for part in parts.values():
                check_arrow(part)
        except Exception as error:
            raise _unreadable(folder, error) from error
    if "train" not in parts:
        raise InvalidFileError(
            f"{folder} has the splits {', '.join(parts)} but no 'train' split; add it"
        )
    return {name: _columns(parts[name]) for name in ("train", *TEST_PARTS) if name in parts}


def _check_saved(folder: Path) -> None:
    """Check that `load_from_disk` will open regular files in this folder only."""
    if is_present(folder / "dataset_dict.json"):
        for split in read_json(folder / "dataset_dict.json")["splits"]:
            _check_saved(folder / _plain_name(split, folder))
        return
    state = read_json(folder / "state.json")
    require_regular(folder / "dataset_info.json")
    for key in ("_data_files", "_indices_files", "_indices_data_files"):
        for file in state.get(key) or []:
            require_regular(folder / _plain_name(file["filename"], folder))


def _plain_name(name: str, folder: Path) -> str:
    if Path(name).name != name:
        raise InvalidFileError(f"{folder} refers to '{name}', which is outside of it")
    return name


def _unreadable(folder: Path, error: Exception) -> InvalidFileError:
    # pyarrow, fsspec and datasets have their own exceptions for damaged files.
    return InvalidFileError(
        f"the dataset in {folder} cannot be read ({reason(error)}); write it again"
    )


def _columns(dataset: Any) -> Part:
    image, label = dataset_columns(dataset)
    return DatasetImages(dataset, image), dataset_labels(dataset, label)


def _class_folder_parts(folder: Path) -> dict[str, Part]:
    parts = _train_and_test(folder)
    if parts is None:
        return {"train": class_folders(folder)}
    return dict(zip(("train", "test"), map(class_folders, parts), strict=True))


def _train_and_test(folder: Path) -> tuple[Path, Path] | None:
    train = folder / "train"
    # A train/ that contains images is a class (the vehicle), not a split.
    if not train.is_dir() or not any(path.is_dir() for path in train.iterdir()):
        return None
    test = next((folder / part for part in TEST_PARTS if (folder / part).is_dir()), None)
    if test is None:
        raise InvalidFileError(
            f"{folder} has train/ but no test/, validation/, valid/ or val/; add one, or pass "
            f"{train} itself to hold out a fifth of it"
        )
    return train, test


def _labelled(part: Part, classes: tuple[Label, ...]) -> LabelledImages:
    images, labels = part
    place = {label: i for i, label in enumerate(classes)}
    unknown = [label for label in labels if label not in place]
    if unknown:
        raise InvalidFileError(
            f"class '{unknown[0]}' is in the test split but not in the training split; "
            "add training images, or leave the class out"
        )
    return LabelledImages(images, torch.tensor([place[label] for label in labels]))
