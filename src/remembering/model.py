"""RememberingTransformer: taught as `Teachable`, saved as `Persistent`; predicts and evaluates."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remembering import schema
from remembering.backbones.backbone import Backbone
from remembering.backbones.selection import AUTO, load_backbone
from remembering.config import Settings
from remembering.data.images import ImagesLike
from remembering.data.task import Label, Task
from remembering.evaluation.measure import evaluate
from remembering.evaluation.quality import Evaluation
from remembering.export.onnx_file import Exported, export_onnx
from remembering.inference import predict as inference
from remembering.inference.prediction import Prediction
from remembering.inference.token_cache import BATCH_SIZE
from remembering.learner import Footprint
from remembering.learning.teachable import Teachable
from remembering.runtime.device import usable_device
from remembering.runtime.progress import SILENT, Progress, as_progress
from remembering.state import ModelState, TaskRecord
from remembering.storage.persistence import Persistent
from remembering.storage.saved import SavedModel


class RememberingTransformer(Teachable, Persistent):
    """A frozen Transformer that learns one task after another without forgetting.

    Everything learned is one immutable `ModelState`; learning replaces it in a single assignment.
    Predictions may therefore run in other threads while a task is being learned, and an operation
    that fails leaves the model unchanged.

    Args:
        backbone: The frozen backbone.
        settings: How tasks are learned.
        state: What was learned before; its settings replace `settings`.

    >>> model = RememberingTransformer.from_backbone("bundled", epochs=1)
    >>> images = torch.randint(0, 256, (8, 1, 28, 28), dtype=torch.uint8)
    >>> model.learn(Task("noise", images, ["a", "b"] * 4)).task.name
    'noise'
    >>> model.predict(images[:2]).probabilities.shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        backbone: Backbone,
        settings: Settings | None = None,
        *,
        state: ModelState | None = None,
    ):
        self._backbone = backbone
        self._state = state or ModelState.empty(settings or Settings(), backbone)
        self._saved = SavedModel()

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Path | Backbone = AUTO,
        settings: Settings | None = None,
        *,
        images: ImagesLike | None = None,
        image_size: int | None = None,
        device: str | torch.device | None = None,
        **overrides: Any,
    ) -> RememberingTransformer:
        """Create a model that has not learned anything yet.

        Args:
            backbone: A folder in hub layout, a hub name, "bundled" (letters at 28 px), or a loaded
                `Backbone`. "auto" selects one that suits `images`; see `select_backbone`.
            settings: How tasks are learned.
            images: Some images of the kind to learn; for "auto" only.
            image_size: Input size in pixels, if not the checkpoint's own.
            device: Where to run; a GPU if there is one.
            overrides: Single settings by name, such as `rank=8` or `capacity=3`.

        Raises:
            RememberingError: If a setting is unknown or out of range, or the backbone cannot be
                loaded.
        """
        schema.check_names(Settings, overrides, "settings")
        settings = replace(settings or Settings(), **overrides)
        return cls(load_backbone(backbone, images, image_size, device), settings)

    def __repr__(self) -> str:
        state, backbone = self._state, self._backbone
        return (
            f"RememberingTransformer('{backbone.name}' at {backbone.image_size} px, "
            f"tasks={len(state.tasks)}, adapters={len(state.adapters)}, "
            f"classes={len(state.classes)})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy the model; its first save encodes everything again."""
        return {**vars(self), "_saved": replace(self._saved, artifacts={})}

    @property
    def backbone(self) -> Backbone:
        """The frozen backbone."""
        return self._backbone

    @property
    def state(self) -> ModelState:
        """Everything learned so far."""
        return self._state

    @property
    def settings(self) -> Settings:
        """How tasks are learned."""
        return self._state.settings

    @property
    def tasks(self) -> tuple[TaskRecord, ...]:
        """The learned tasks, in order."""
        return self._state.tasks

    @property
    def classes(self) -> tuple[Label, ...]:
        """Labels of all learned tasks."""
        return self._state.classes

    @property
    def learned(self) -> int:
        """Number of learned tasks."""
        return len(self._state.tasks)

    def predict(
        self,
        images: ImagesLike,
        *,
        groups: Iterable[Hashable] | Tensor | None = None,
        false_alarm_rate: float | None = None,
        top_k: int | None = None,
        neighbors: int = 0,
        batch_size: int = BATCH_SIZE,
        progress: Progress | bool = SILENT,
    ) -> Prediction:
        """Answer images without knowing their task.

        Args:
            images: Anything that `as_images` accepts: a folder, a table, a tensor, an array, a list
                of arrays, Pillow images or paths, a single image, a dataset, a data frame, a data
                loader.
            groups: For each image, where it comes from (a folder, a burst, a camera). The images
                of a group are routed together. If None, each image is routed alone, and its
                answer does not depend on the other images.
            false_alarm_rate: Target false-alarm rate in (0, 1). If None, nothing is flagged.
            top_k: Number of most probable labels to list in `Prediction.top_k`.
            neighbors: Number of most similar replay images to list in `Prediction.neighbors`.
            batch_size: Images that are answered at a time; affects speed and memory only.
            progress: Reports progress. True: bars on the terminal or in the notebook.
        """
        options = groups, false_alarm_rate, top_k, as_progress(progress), batch_size, neighbors
        return inference.predict(self._state, self._backbone, images, *options)

    def predict_proba(self, images: ImagesLike) -> Tensor:
        """Return class probabilities (n, classes); the columns are `classes`."""
        return self.predict(images).probabilities

    def novelty(self, images: ImagesLike, *, progress: Progress | bool = SILENT) -> Tensor:
        """Return the p-value of each image under the hypothesis that it belongs to a learned task.

        Of images like those learned, about 5 % have a p-value of 0.05 or less.
        """
        return inference.novelty(self._state, self._backbone, images, as_progress(progress))

    def evaluate(
        self,
        tasks: Task | Sequence[Task] | str | Path,
        *,
        unknown: ImagesLike | None = None,
        train: Task | Sequence[Task] | str | Path | None = None,
        false_alarm_rate: float = 0.05,
        progress: Progress | bool = SILENT,
    ) -> Evaluation:
        """Measure how good the model is on labelled images, each answered alone.

        Args:
            tasks: Images with labels that were not used for learning: tasks, or what `load_tasks`
                reads, such as a folder of class folders. Images of classes that were not learned
                are left out, with a logged warning.
            unknown: Images of none of the learned classes, to measure how well they are detected.
            train: Training images, to compare with a linear probe on the same frozen backbone.
            false_alarm_rate: Requested false-alarm rate.
            progress: Reports progress. True: bars on the terminal or in the notebook.
        """
        options = unknown, train, false_alarm_rate, as_progress(progress)
        return evaluate(self, tasks, *options)

    def export_onnx(
        self, path: str | Path, *, images: ImagesLike | None = None, overwrite: bool = False
    ) -> Exported:
        """Write the complete answer path as an ONNX file, verified with onnxruntime.

        Args:
            path: The file.
            images: Images to verify the file with. If None, replay images, where the model has
                some, and generated patterns.
            overwrite: Whether to replace an existing file.

        Raises:
            RememberingError: If the answers of the file differ from those of the model, or for
                other reasons; then nothing is written.
        """
        options = images, overwrite, self._saved.model_id
        return export_onnx(self._state, self._backbone, Path(path), *options)

    def footprint(self) -> Footprint:
        """Count what must be kept besides the frozen backbone."""
        return self._state.footprint

    def to(self, device: str | torch.device) -> RememberingTransformer:
        """Move the model to another device, and return it."""
        where = usable_device(device)
        self._backbone.to(where)
        self._state = self._state.to(where)
        return self

    def with_settings(
        self, settings: Settings | None = None, **overrides: Any
    ) -> RememberingTransformer:
        """Return a model with the same state that learns further tasks with other settings.

        Args:
            settings: All settings. If None, those of this model.
            overrides: Single settings by name, such as `epochs=0`.

        Raises:
            RememberingError: If a setting is unknown or out of range.
        """
        schema.check_names(Settings, overrides, "settings")
        settings = replace(settings or self.settings, **overrides)
        return self.with_state(replace(self._state, settings=settings))

    def with_state(self, state: ModelState) -> RememberingTransformer:
        """Return a model with another state, which may be saved to the same folder as this one."""
        model = RememberingTransformer(self._backbone, state=state)
        model._saved = self._saved.copy()
        return model
