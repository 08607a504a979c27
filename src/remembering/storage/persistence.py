"""Save and load a model: folders and the Hugging Face hub."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Self

import torch

from remembering.backbones.backbone import Backbone
from remembering.runtime.files import write_atomic
from remembering.state import ModelState
from remembering.storage import hub, reader, writer
from remembering.storage.saved import SavedModel


class Persistent:
    """Methods of a model that save and load it.

    Subclasses hold a backbone and a state, and are constructed from them. The files on the hub are
    those of `save`, with a model card beside them.
    """

    _backbone: Backbone
    _state: ModelState
    _saved: SavedModel

    def __init__(self, backbone: Backbone, *, state: ModelState):
        raise TypeError("subclasses construct a model from a backbone and a state")

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model to a folder, atomically: PEFT adapters, safetensors and a manifest.

        Args:
            folder: A new or empty folder, or one that holds an earlier state of this model.
            overwrite: Whether to replace another model, or one that was saved since.

        Raises:
            RememberingError: If the folder holds other files, or a state that this model does not
                descend from, or cannot be written.
        """
        self._state, self._saved = writer.save(
            self._state, self._backbone, Path(folder), self._saved, overwrite=overwrite
        )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        backbone: str | Path | Backbone | None = None,
        device: str | torch.device | None = None,
        intact_only: bool = False,
        previous: bool = False,
        cache_bytes: int | None = None,
    ) -> Self:
        """Read a saved model, while other processes may be writing to the folder.

        Args:
            folder: The folder that `save` wrote.
            backbone: Where the model's backbone is now, if it moved, or the loaded backbone.
            device: Where to run; a GPU if there is one.
            intact_only: Leave out tasks whose files are damaged instead of raising.
            previous: Load the state before the last save.
            cache_bytes: Upper bound on adapters that stay in memory between batches; the others
                are read when they are needed. If None, all stay in memory once read.
        """
        state, loaded, saved = reader.load(
            Path(folder),
            backbone,
            device,
            intact_only=intact_only,
            previous=previous,
            cache_bytes=cache_bytes,
        )
        model = cls(loaded, state=state)
        model._saved = saved
        return model

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, **options: Any
    ) -> Self:
        """Load a model from a folder or from the hub.

        Args:
            name: A local folder, or the name of a repository on the hub.
            revision: Branch, tag or commit of the repository.
            options: Options of `load`.

        Raises:
            RememberingError: If there is no such model, or the hub cannot be reached.
        """
        folder = Path(name).expanduser()
        if not folder.is_dir():
            folder = hub.download(str(name), revision)
        return cls.load(folder, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model and write a model card beside it."""
        self.save(folder)
        card = hub.model_card(self._state, repr(self))
        write_atomic(Path(folder) / hub.CARD, card.encode())

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the model to the hub, creating the repository if it is missing.

        Returns:
            The URL of the commit.
        """
        hub.require_hub(f"'{repo_id}' cannot be uploaded")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            type(self)(self._backbone, state=self._state).save_pretrained(folder)
            return hub.upload(folder, repo_id, private=private, token=token)
