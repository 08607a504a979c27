"""Data sets of the Hugging Face hub, and files in its layout."""

from __future__ import annotations

from typing import Any

from remembering.data.sources.base import reason
from remembering.errors import RememberingError

PATIENCE_SECONDS = 5


def fetch(repository: str) -> Any:
    """The `DatasetDict` of a repository; fails within seconds where the hub cannot be reached."""
    import datasets
    from huggingface_hub import HfApi

    try:
        # `load_dataset` retries for half a minute and prints each attempt; one plain question
        # tells whether it is worth it. Offline mode reads what `datasets` has stored before.
        if not datasets.config.HF_HUB_OFFLINE:
            HfApi().dataset_info(repository, timeout=PATIENCE_SECONDS)
        return datasets.load_dataset(repository)
    # Every layer below (httpx, the hub, datasets, pyarrow) raises its own kinds.
    except Exception as error:
        raise RememberingError(f"the hub did not give {repository} ({reason(error)})") from error
