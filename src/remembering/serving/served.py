"""A model at one version, and where new versions come from: the folder of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.model import RememberingTransformer
from remembering.state import ModelState
from remembering.storage.manifest import MANIFEST, PREVIOUS, is_model, read_manifest


def new_model() -> RememberingTransformer:
    """Return a model on the bundled backbone that has learned nothing."""
    return RememberingTransformer.from_backbone(BUNDLED)


Identity = tuple[str, int]
"""Model id and number of saves."""


@dataclass(frozen=True, eq=False)
class Served:
    """A model at one version; both stay the same while requests use them.

    Attributes:
        version: Number of saves; 0 for a model that was never saved.
        model: The model.
        model_id: Identifies the model: another one in its folder may have as many saves.
    """

    version: int
    model: RememberingTransformer
    model_id: str = ""

    @property
    def identity(self) -> Identity:
        """What differs between all states that a folder may hold."""
        return self.model_id, self.version


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a model, which other processes may also write.

    Attributes:
        path: The folder.
        backbone: Where the backbone of the model is now, if it was moved.
        create: Returns a model that has learned nothing, if the folder holds none.
    """

    path: Path
    create: Callable[[], RememberingTransformer]
    backbone: str | None = None

    def load(self, backbone: Backbone | None = None) -> Served:
        """Return the model of the folder, or a new one as version 0.

        Args:
            backbone: The backbone of the model, if it is loaded already.
        """
        if not is_model(self.path):
            return Served(0, self.create())
        while True:
            identity = self.identity()
            model = RememberingTransformer.load(self.path, backbone=backbone or self.backbone)
            if self.identity() == identity:  # else another process saved meanwhile
                return self.served(model, identity)

    def previous(self) -> ModelState | None:
        """Return the state before the last save, if there is one."""
        if not self.has_previous:
            return None
        return RememberingTransformer.load(self.path, backbone=self.backbone, previous=True).state

    @property
    def has_previous(self) -> bool:
        """Whether the folder holds the state before the last save."""
        return (self.path / PREVIOUS).is_file()

    def identity(self) -> Identity:
        """Return model id and number of saves."""
        manifest = read_manifest(self.path)
        return manifest.model_id, manifest.generation

    def served(self, model: RememberingTransformer, identity: Identity | None = None) -> Served:
        """Return a model as it is in the folder."""
        model_id, version = identity or self.identity()
        return Served(version, model, model_id)

    def stamp(self) -> tuple[int, int, int] | None:
        """Return what changes with every save, without reading a file; None if there is none."""
        try:
            info = (self.path / MANIFEST).stat()
        except OSError:
            return None
        return info.st_ino, info.st_mtime_ns, info.st_size
