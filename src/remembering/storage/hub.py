"""The Hugging Face hub: download and upload model folders; the model card."""

from __future__ import annotations

from pathlib import Path

from remembering.errors import RememberingError
from remembering.runtime import hub
from remembering.runtime.files import cache_dir
from remembering.runtime.text import printable
from remembering.state import ModelState
from remembering.storage.manifest import DIRECTORIES, MANIFEST

CARD = "README.md"
_FILES = [MANIFEST, *(f"{directory}/*" for directory in DIRECTORIES), CARD]


def upload(folder: Path, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a model folder, creating the repository if it is missing; return the commit's URL."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    api.create_repo(repo_id, private=private, exist_ok=True)
    commit = api.upload_folder(repo_id=repo_id, folder_path=folder, delete_patterns=_FILES[:-1])
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
    return printable(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def download(name: str, revision: str | None) -> Path:
    """Download a model folder from the hub, and return where it is."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    require_hub(f"'{name}' is not a local folder")
    folder = cache_dir() / "hub" / name.replace("/", "--") / (revision or "main")
    try:
        # A local folder has plain files, where the hub's own cache has links.
        snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=_FILES)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RememberingError(f"model '{name}' cannot be downloaded: {reason}") from error
    return folder


def require_hub(problem: str) -> None:
    """Raise if the hub cannot be reached."""
    if not hub.reachable():
        raise RememberingError(
            f"{problem}, and the hub cannot be reached; go online, or give a local folder"
        )
