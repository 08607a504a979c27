"""RememberingTransformer: learn, predict, save, load."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.config import Settings
from remembering.data.images import ImagesLike
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.inference import predict as inference
from remembering.inference.prediction import Prediction
from remembering.learner import Footprint
from remembering.learning.algorithm import learn
from remembering.learning.checkpoint import Checkpoint
from remembering.learning.forget import Forgotten, forget
from remembering.learning.observe import Observed, flush, observe
from remembering.runtime.malloc import trim_malloc
from remembering.runtime.progress import SILENT, Progress
from remembering.state import ModelState, TaskRecord
from remembering.storage import reader, writer
from remembering.storage.hub import HubMixin
from remembering.storage.saved import SavedModel


class RememberingTransformer(HubMixin):
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
    >>> model.learn(Task("noise", images, ["a", "b"] * 4)).name
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
        backbone: str | Path | Backbone = BUNDLED,
        settings: Settings | None = None,
        *,
        image_size: int | None = None,
        device: str | torch.device | None = None,
        **overrides: Any,
    ) -> RememberingTransformer:
        """Create a model that has not learned anything yet.

        Args:
            backbone: "bundled", a folder in hub layout, a hub name, or a loaded `Backbone`.
            settings: How tasks are learned.
            image_size: Input size in pixels, if not the checkpoint's own.
            device: Where to run; a GPU if there is one.
            overrides: Single settings by name, such as `rank=8` or `capacity=3`.
        """
        if not isinstance(backbone, Backbone):
            backbone = Backbone.load(backbone, image_size, device)
        elif image_size not in (None, backbone.image_size):
            raise RememberingError(
                f"the backbone was loaded for {backbone.image_size} px; load it again for "
                f"{image_size} px"
            )
        return cls(backbone, replace(settings or Settings(), **overrides))

    def __repr__(self) -> str:
        state, backbone = self._state, self._backbone
        return (
            f"RememberingTransformer('{backbone.name}' at {backbone.image_size} px, "
            f"tasks={len(state.tasks)}, adapters={len(state.adapters)}, "
            f"classes={len(state.classes)})"
        )

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

    def learn(
        self, task: Task, *, progress: Progress = SILENT, checkpoint: Checkpoint | None = None
    ) -> TaskRecord:
        """Learn a task. If this fails for any reason, the model is unchanged.

        Args:
            task: Images and labels.
            progress: Reports progress.
            checkpoint: Where to keep the progress of the training, so that a killed process can
                resume the task.
        """
        self._state = learn(self._state, self._backbone, task, progress, checkpoint)
        trim_malloc()
        return self._state.tasks[-1]

    def observe(
        self,
        images: ImagesLike,
        labels: Sequence[Label],
        *,
        refine: bool = False,
        progress: Progress = SILENT,
    ) -> Observed:
        """Take in a batch of a stream without task boundaries.

        Images that resemble learned tasks are recognised. New images wait until the stream has
        moved on and are then learned as a task; `flush` learns them at once.

        Args:
            images: As for `predict`.
            labels: One label per image.
            refine: Whether recognised images update the generative models of their tasks.
            progress: Reports progress.
        """
        batch = images, labels, refine, progress
        self._state, observed = observe(self._state, self._backbone, *batch)
        trim_malloc()
        return observed

    def flush(
        self, *, discard: bool = False, progress: Progress = SILENT
    ) -> tuple[TaskRecord, ...]:
        """Learn the observed images that are still waiting, and return the new tasks.

        Args:
            discard: Whether to drop what cannot be learned, such as a label with a single image.
            progress: Reports progress.

        Raises:
            RememberingError: If some cannot be learned and `discard` is False. They keep waiting;
                the others are learned.
        """
        before = len(self._state.tasks)
        for state in flush(self._state, self._backbone, discard, progress):
            self._state = state
        return self._state.tasks[before:]

    def forget(self, name: str) -> Forgotten:
        """Remove a task: its generative model, its replay images, and its adapter unless shared.

        The other tasks answer as before. An adapter that serves several tasks, the feature adapter
        and the covariance of the Gaussians remain while another task needs them.
        """
        self._state, forgotten = forget(self._state, name)
        return forgotten

    def predict(
        self,
        images: ImagesLike,
        *,
        groups: Iterable[Hashable] | Tensor | None = None,
        false_alarm_rate: float | None = None,
        top_k: int | None = None,
        progress: Progress = SILENT,
    ) -> Prediction:
        """Answer images without knowing their task.

        Args:
            images: A tensor, an array, or a list of arrays, PIL images or file names.
            groups: For each image, where it comes from (a folder, a burst, a camera). The images
                of a group are routed together. If None, each image is routed alone, and its
                answer does not depend on the other images.
            false_alarm_rate: Target false-alarm rate in (0, 1). If None, nothing is flagged.
            top_k: Number of most probable labels to list in `Prediction.top_k`.
            progress: Reports progress.
        """
        options = groups, false_alarm_rate, top_k, progress
        return inference.predict(self._state, self._backbone, images, *options)

    def predict_proba(self, images: ImagesLike) -> Tensor:
        """Return class probabilities (n, classes); the columns are `classes`."""
        return self.predict(images).probabilities

    def novelty(self, images: ImagesLike, *, progress: Progress = SILENT) -> Tensor:
        """Return the p-value of each image under the hypothesis that it belongs to a learned task.

        Of images like those learned, about 5 % have a p-value of 0.05 or less.
        """
        return inference.novelty(self._state, self._backbone, images, progress)

    def footprint(self) -> Footprint:
        """Count what must be kept besides the frozen backbone."""
        return self._state.footprint

    def to(self, device: str | torch.device) -> RememberingTransformer:
        """Move the model to another device, and return it."""
        self._backbone.to(device)
        self._state = self._state.to(torch.device(device))
        return self

    def with_settings(self, settings: Settings) -> RememberingTransformer:
        """Return a model with the same state that learns further tasks with other settings."""
        model = self._copy()
        model._state = replace(self._state, settings=settings)
        return model

    def _copy(self) -> RememberingTransformer:
        model = RememberingTransformer(self._backbone, state=self._state)
        model._saved = self._saved.copy()
        return model

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
    ) -> RememberingTransformer:
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
