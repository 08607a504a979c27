"""Scaling out with Ray: bulk prediction on many workers, and replicas behind one address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from remembering.model import RememberingTransformer
from remembering.serving.options import ServeOptions

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.data import Dataset
    from ray.serve import Application

BATCH_SIZE = 64


class Predictor:
    """Answers batches of files; each worker loads the model once.

    Args:
        folder: Folder of the model, which every worker must reach.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    def __init__(self, folder: str, backbone: str | None = None):
        self.model = RememberingTransformer.load(folder, backbone=backbone)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add label, probability, task and adapter to a batch with the column `file`."""
        prediction = self.model.predict([Path(file) for file in batch["file"]])
        return {
            "file": batch["file"],
            "label": np.array(prediction.labels),
            "probability": prediction.confidence.numpy(),
            "task": np.array(prediction.tasks),
            "adapter": prediction.adapters.numpy(),
        }


def predict_files(
    folder: Path, files: Sequence[Path], *, workers: int = 2, backbone: str | None = None
) -> Dataset:
    """Answer image files on several Ray workers.

    Args:
        folder: Folder of the model. Workers on other machines read it there, as they do the files.
        files: The image files.
        workers: Number of workers; each holds a copy of the model.
        backbone: Where the backbone of the model is now, if it was moved.

    Returns:
        A lazy dataset with the columns file, label, probability, task and adapter, such as for
        `write_parquet`. The order of its rows is not defined.
    """
    import ray.data

    paths = [{"file": str(file.absolute())} for file in files]
    blocks = max(workers, len(paths) // 1024)
    return ray.data.from_items(paths, override_num_blocks=blocks).map_batches(
        Predictor,
        fn_constructor_args=(str(folder.absolute()), backbone),
        batch_size=BATCH_SIZE,
        compute=ray.data.ActorPoolStrategy(size=workers),
    )


def deployment(
    options: ServeOptions, *, replicas: int = 2, backbone: str | None = None
) -> Application:
    """Return a Ray Serve application of replicas that only read the model.

    They pick up new states by themselves; `remember serve` on the same folder learns. Run it with
    `ray.serve.run(deployment(ServeOptions(folder)))`.

    Args:
        options: What to serve. `host` must be the address that Ray Serve binds to, so that a token
            is required where it is needed.
        replicas: Number of replicas; each holds a copy of the model.
        backbone: Where the backbone of the model is now, if it was moved.
    """
    from ray import serve

    options = replace(options, read_only=True)

    def build() -> FastAPI:
        from remembering.serving.app import create_app
        from remembering.serving.service import Service

        return create_app(Service(options, backbone=backbone))

    class Replica:
        """One copy of the service."""

    replica: Any = serve.ingress(build)(Replica)
    application: Application = serve.deployment(replica, num_replicas=replicas).bind()
    return application
