"""Download data sets from the Hugging Face hub."""

from __future__ import annotations

from typing import Any

from remembering.errors import DownloadError, reason

TIMEOUT_SECONDS = 5


def fetch(repository: str) -> Any:
    """Return the `DatasetDict` of a repository; no code of the repository is executed.

    Raises:
        DownloadError: If the hub cannot be reached (within seconds), or has no such repository.
    """
    import datasets
    from huggingface_hub import HfApi

    try:
        # `load_dataset` retries for half a minute and prints every attempt; a single request shows
        # whether the hub can be reached. In offline mode, the cache of `datasets` is read.
        if not datasets.config.HF_HUB_OFFLINE:
            HfApi().dataset_info(repository, timeout=TIMEOUT_SECONDS)
        return datasets.load_dataset(repository)
    # httpx, the hub, datasets and pyarrow each have their own exceptions.
    except Exception as error:
        raise DownloadError(
            f"{repository} could not be downloaded from the hub ({reason(error)})"
        ) from error
