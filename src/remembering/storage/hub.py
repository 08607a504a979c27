"""Model folders on the Hugging Face hub: download, upload, model card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Protocol, Self

from remembering.errors import RememberingError
from remembering.runtime import hub
from remembering.runtime.files import cache_dir, write_atomic
from remembering.state import ModelState
from remembering.storage.manifest import DIRECTORIES, MANIFEST

CARD = "README.md"
_FILES = [MANIFEST, *(f"{directory}/*" for directory in DIRECTORIES), CARD]


class _Model(Protocol):
    @property
    def state(self) -> ModelState: ...

    def save(self, folder: str | Path) -> None: ...


class HubMixin:
    """`from_pretrained`, `save_pretrained` and `push_to_hub` for a class with `save` and `load`.

    The files are those of `save`, with a model card beside them.
    """

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
            folder = _download(str(name), revision)
        model: Self = cls.load(folder, **options)  # type: ignore[attr-defined]
        return model

    def save_pretrained(self: _Model, folder: str | Path) -> None:
        """Save the model and write a model card beside it."""
        self.save(folder)
        write_atomic(Path(folder) / CARD, model_card(self.state, repr(self)).encode())

    def push_to_hub(
        self: Any, repo_id: str, *, private: bool = False, token: str | None = None
    ) -> str:
        """Upload the model to the hub, creating the repository if it is missing.

        Returns:
            The URL of the commit.
        """
        from huggingface_hub import HfApi

        _require_hub(f"'{repo_id}' cannot be uploaded")
        api = HfApi(token=token)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            self._copy().save_pretrained(folder)
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, delete_patterns=_FILES[:-1]
            )
        return str(commit.commit_url)


def model_card(state: ModelState, summary: str) -> str:
    """Return a model card in Markdown: what was learned, and how to use it."""
    settings, footprint = state.settings, state.footprint
    rows = "\n".join(
        f"| {_cell(task.name)} | {_cell(', '.join(map(str, task.classes)))} | {task.images:,} | "
        f"{task.adapter} |"
        for task in state.tasks
    )
    return f"""---
library_name: remembering
tags:
- continual-learning
- lora
- image-classification
pipeline_tag: image-classification
---

# {_cell(summary)}

A frozen Vision Transformer that learned {len(state.tasks)} tasks one after another and answers
single images without being told their task.

```python
from remembering import RememberingTransformer

model = RememberingTransformer.from_pretrained("THIS_REPOSITORY")
prediction = model.predict(["photo.jpg"], false_alarm_rate=0.05)
```

| task | classes | training images | adapter |
| --- | --- | ---: | ---: |
{rows}

- Adapters: {len(state.adapters)}, LoRA of rank {settings.rank} on Q, K, V and O, in PEFT's format.
- Router: {settings.router.kind} on layers {", ".join(map(str, settings.router.layers))}.
- Classifier: {settings.classifier.kind}.
- Size besides the backbone: {footprint.bytes:,} bytes, of which {footprint.replay_bytes:,} bytes
  are replay images. Replay images are training images: publish them only if you may.
"""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    _require_hub(f"'{name}' is not a local folder")
    folder = cache_dir() / "hub" / name.replace("/", "--") / (revision or "main")
    try:
        # A local folder has plain files, where the hub's own cache has links.
        snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=_FILES)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RememberingError(f"model '{name}' cannot be downloaded: {reason}") from error
    return folder


def _require_hub(problem: str) -> None:
    if not hub.reachable():
        raise RememberingError(
            f"{problem}, and the hub cannot be reached; go online, or give a local folder"
        )
