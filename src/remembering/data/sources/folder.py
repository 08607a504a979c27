"""Data of the user's own: class folders, parquet files, or what `save_to_disk` has written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from remembering.data.images import DatasetImages, ImageSequence, class_folders
from remembering.data.sources.base import (
    TEST_PARTS,
    LabelledImages,
    Source,
    Splits,
    hold_out,
    reason,
)
from remembering.data.sources.decode import positions, stack
from remembering.data.sources.parquet import parquet_files
from remembering.data.task import Label, dataset_columns, dataset_labels
from remembering.errors import RememberingError

Part = tuple[ImageSequence, Sequence[Label]]


def load_folder(folder: Path) -> Source:
    """Whatever layout the folder is in.

    - `train/` and `test/` (or `validation/`, `valid/`, `val/`), each with one folder per class;
    - one folder per class;
    - `train-*.parquet` and `test-*.parquet`, here or in `data/`, as on the hub;
    - what `datasets` has written with `save_to_disk`.

    Where there is no test part, every fifth image of each class is held out, always the same.
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
    """A published data set of small images as class folders in train/ and test/, decoded."""
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
    """The parts of a folder that `datasets` reads; none if it holds no such files."""
    if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        dataset = _read(folder, "load_from_disk", str(folder))
        # One dataset that was saved without parts is all to learn from.
        parts: dict[str, Any] = dataset if isinstance(dataset, dict) else {"train": dataset}
    else:
        files = parquet_files(folder) or parquet_files(folder / "data")
        if not files:
            return {}
        names = {part: [str(path) for path in paths] for part, paths in files.items()}
        parts = _read(folder, "load_dataset", "parquet", data_files=names)
    if "train" not in parts:
        raise RememberingError(
            f"{folder} has the parts {', '.join(parts)} but no 'train' to learn from; add it"
        )
    return {name: _columns(parts[name]) for name in ("train", *TEST_PARTS) if name in parts}


def _read(folder: Path, function: str, *arguments: Any, **options: Any) -> Any:
    import datasets

    try:
        return getattr(datasets, function)(*arguments, **options)
    # Damaged files make pyarrow, fsspec and datasets raise kinds of their own.
    except Exception as error:
        raise RememberingError(
            f"the dataset in {folder} cannot be read ({reason(error)}); write it again"
        ) from error


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
    # A train/ that holds images is a class of its own: the vehicle.
    if not train.is_dir() or not any(path.is_dir() for path in train.iterdir()):
        return None
    test = next((folder / part for part in TEST_PARTS if (folder / part).is_dir()), None)
    if test is None:
        raise RememberingError(
            f"{folder} has train/ but no test/, validation/, valid/ or val/ beside it; add one, "
            f"or give {train} itself to have a fifth of it held out"
        )
    return train, test


def _labelled(part: Part, classes: tuple[Label, ...]) -> LabelledImages:
    images, labels = part
    place = {label: i for i, label in enumerate(classes)}
    unknown = [label for label in labels if label not in place]
    if unknown:
        raise RememberingError(
            f"class '{unknown[0]}' is in the test part but not in the train part; "
            "add images to learn it from, or leave it out"
        )
    return LabelledImages(images, torch.tensor([place[label] for label in labels]))
