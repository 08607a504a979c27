"""RememberingTransformer: learn, predict, save, load."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from remembering.adapters.bank import AdapterBank
from remembering.adapters.heads import Head, Heads
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.config import Settings
from remembering.data.images import Images, ImageSequence, as_images
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.inference.combine import Columns, combine
from remembering.inference.encoding import TokenCache, batches, encode
from remembering.inference.prediction import Forgotten, Prediction, TaskRecord, choose
from remembering.learner import Footprint
from remembering.learning.algorithm import Learned, learn
from remembering.learning.checkpoint import Checkpoint
from remembering.learning.observe import Observed, Observer
from remembering.learning.replay import Memory
from remembering.learning.training import logits
from remembering.routing import Router, make_router
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.malloc import trim_malloc
from remembering.runtime.progress import SILENT, Progress

if TYPE_CHECKING:
    from remembering.storage.artifacts import Part
    from remembering.storage.manifest import Manifest


class RememberingTransformer:
    """A frozen Transformer that learns one task after another and forgets none.

    >>> model = RememberingTransformer.from_backbone("bundled", epochs=1)
    >>> images = torch.randint(0, 256, (8, 1, 28, 28), dtype=torch.uint8)
    >>> model.learn(Task("noise", images, ["a", "b"] * 4)).name
    'noise'
    >>> model.predict(images[:2]).probabilities.shape
    torch.Size([2, 2])
    """

    def __init__(self, backbone: Backbone, settings: Settings):
        if settings.first_layer >= backbone.depth:
            raise RememberingError(
                f"first_layer = {settings.first_layer} is not among the {backbone.depth} layers of "
                f"'{backbone.name}'"
            )
        settings = replace(settings, router=settings.router.resolved(backbone.depth))
        if settings.router.layers[-1] > backbone.depth:
            raise RememberingError(
                f"router.layers = {settings.router.layers} reaches past the {backbone.depth} "
                f"layers of '{backbone.name}'"
            )
        if settings.head == "frozen":
            backbone.require_classifier()
        self.backbone = backbone
        self.settings = settings
        self.router: Router = make_router(settings.router)
        self.feature_adapter: Adapter | None = None
        self.adapters = AdapterBank()
        self.heads: dict[int, Head] = {}
        self.memories: dict[int, Memory] = {}
        self.tasks: list[TaskRecord] = []
        self.next_number = 0
        self.parts: dict[str, Part] = {}
        """What is stored already."""
        self.stored: tuple[Path, Manifest] | None = None
        """Where it was loaded from or saved last, and what the folder then said."""
        self._gate: Tensor | None = None
        self._heads: Heads | None = None
        self._columns: Columns | None = None
        self._observer = Observer(self)

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Path | Backbone = BUNDLED,
        settings: Settings | None = None,
        image_size: int | None = None,
        **changes: Any,
    ) -> RememberingTransformer:
        """A model that has learned nothing yet.

        Args:
            backbone: "bundled", a folder in hub layout, a hub name, or a loaded `Backbone`.
            settings: how it learns.
            image_size: input size, if not the checkpoint's own.
            changes: single settings by name, such as `rank=8` or `capacity=3`.
        """
        settings = replace(settings or Settings(), **changes)
        if not isinstance(backbone, Backbone):
            backbone = Backbone.load(backbone, image_size)
        elif image_size not in (None, backbone.image_size):
            raise RememberingError(
                f"the backbone is loaded for {backbone.image_size} px; "
                f"load it anew for {image_size}"
            )
        return cls(backbone, settings)

    @property
    def classes(self) -> tuple[Label, ...]:
        """Every label that some adapter knows."""
        return self._all_heads().classes if self.heads else ()

    @property
    def single_pass(self) -> bool:
        """Whether routing adds no second run of any layer."""
        return self.settings.router.layers[-1] <= self.settings.first_layer

    @property
    def layers_run(self) -> int:
        """For one image: up to where the router reads, the mirror image too, and the adapters'."""
        depth, router = self.backbone.depth, self.settings.router
        if self.single_pass:
            return depth
        return (2 if router.flip else 1) * router.layers[-1] + depth - self.settings.first_layer

    @property
    def needs_feature_adapter(self) -> bool:
        """Whether the router reads states that an adapter can change."""
        return self.settings.router.feature_rank > 0 and not self.single_pass

    def learn(
        self, task: Task, progress: Progress = SILENT, checkpoint: Checkpoint | None = None
    ) -> TaskRecord:
        """Learn a task. If it fails for any reason, the model is as it was before.

        With a `checkpoint`, a process that dies within the task leaves its progress there, and
        the next call for the same task goes on from it.
        """
        if any(record.name == task.name for record in self.tasks):
            raise RememberingError(
                f"a task named '{task.name}' is already learned; give another name"
            )
        known = [label for record in self.tasks for label in record.classes]
        if known and type(known[0]) is not type(task.classes[0]):
            raise RememberingError(
                f"task '{task.name}' has {type(task.classes[0]).__name__} labels, but the model "
                f"knows {type(known[0]).__name__} labels; use one kind"
            )
        record = self._take_over(task, learn(self, task, progress, checkpoint))
        trim_malloc()
        return record

    def _take_over(self, task: Task, learned: Learned) -> TaskRecord:
        number = self.next_number
        record = TaskRecord(number, task.name, task.classes, len(task), number)
        self.router.add(number, learned.expert)
        if learned.memory is not None:
            self.memories[number] = learned.memory
        if learned.absorbed is not None:
            # Gate(e) <- t for every task e that the absorbed adapter served.
            self.tasks = [
                replace(old, adapter=number) if old.adapter == learned.absorbed else old
                for old in self.tasks
            ]
            del self.adapters[learned.absorbed], self.heads[learned.absorbed]
        self.adapters[number] = learned.adapter
        self.heads[number] = learned.head
        self.feature_adapter = learned.feature_adapter
        self.tasks.append(record)
        self.next_number = number + 1
        self._gate = self._heads = self._columns = None
        return record

    def observe(
        self,
        images: Any,
        labels: Sequence[Label],
        refine: bool = False,
        progress: Progress = SILENT,
    ) -> Observed:
        """Take in a batch of a stream that has no task boundaries.

        What belongs to a task already learned is recognised. What is new waits until the stream
        has moved on, and is then learned as a task; `flush` learns it at once.

        Args:
            images: as for `predict`.
            labels: one for each image.
            refine: let the generative models of recognised tasks see these images, too.
        """
        return self._observer.observe(images, labels, refine, progress)

    def flush(self, progress: Progress = SILENT, discard: bool = False) -> list[TaskRecord]:
        """Learn what was observed and still waits.

        Args:
            progress: who is told.
            discard: let go what cannot be learned, such as a label of which there is one image.
        """
        return self._observer.flush(discard, progress)

    def forget(self, name: str) -> Forgotten:
        """Remove a task: its generative model, its replay images, and its adapter unless shared.

        The other tasks answer as before. What is shared stays while another task needs it: an
        adapter that serves several, the feature_adapter of the router, and the covariance of its Gaussians.
        """
        record = next((record for record in self.tasks if record.name == name), None)
        if record is None:
            known = ", ".join(f"'{record.name}'" for record in self.tasks) or "none"
            raise RememberingError(f"there is no task '{name}' to forget; the tasks are {known}")
        self.tasks.remove(record)
        self.router.remove(record.number)
        memory = self.memories.pop(record.number, None)
        shared = [other.name for other in self.tasks if other.adapter == record.adapter]
        if not shared:
            del self.adapters[record.adapter], self.heads[record.adapter]
        if not self.tasks:
            self.feature_adapter = None
            self.router.restore({}, {})
        self._gate = self._heads = self._columns = None
        return Forgotten(record, tuple(shared), len(memory.labels) if memory else 0)

    def predict(
        self,
        images: Any,
        groups: Sequence[Any] | None = None,
        progress: Progress = SILENT,
        unknown: float | None = None,
    ) -> Prediction:
        """Answer images without being told their task.

        Args:
            images: an array, a tensor, or a list of arrays, PIL images or file names.
            groups: for each image, where it comes from (a folder, a burst, a camera); images of
                one group are routed together. Without, each image is routed alone, and its answer
                does not depend on the others.
            unknown: how many of a hundred known images may be flagged as unknown, as a share; none
                is flagged without.
        """
        self._require_tasks()
        if unknown is not None and not (isinstance(unknown, Real) and 0 < unknown < 1):
            raise RememberingError(f"unknown = {unknown} must lie between 0 and 1, such as 0.05")
        sequence = _some(images)
        if groups is not None:
            features = self.router_features(sequence, progress)
            errors, logits = self.router.scores_and_logits(features)
            tasks = choose(errors, groups)
            answers = self.answer(sequence, self.gate(tasks), progress)
            answers = self.combine(answers, logits, self.gate(tasks), hard_routing=True)
            p = self.router.novelty(features).cpu() if unknown else None
            return self._prediction(answers, errors, tasks, p, unknown)
        parts = []
        with progress.track("predicting", len(sequence)) as step:
            for index in batches(len(sequence)):
                parts.append(self._predict_batch(sequence[index], unknown is not None))
                step(len(index))
        answers, errors, novelty = (torch.cat(column) for column in zip(*parts, strict=True))
        p = novelty if unknown else None
        return self._prediction(answers, errors, errors.argmin(1), p, unknown)

    def novelty(self, images: Any, progress: Progress = SILENT) -> Tensor:
        """For each image, the p-value that it belongs to what was learned.

        Of images like those learned, at most about 5 % have a p-value of 0.05 or less.
        """
        self._require_tasks()
        return self.router.novelty(self.router_features(_some(images), progress)).cpu()

    def gate(self, tasks: Tensor) -> Tensor:
        """Gate: from positions in `tasks` to the numbers of the adapters that answer for them."""
        if self._gate is None:
            self._gate = torch.tensor([record.adapter for record in self.tasks])
        return self._gate[tasks]

    def route(self, images: ImageSequence, progress: Progress = SILENT) -> Tensor:
        """Reconstruction errors (n, tasks) of images under every task's generative model."""
        self._require_tasks()
        return self.router.score(self.router_features(images, progress)).cpu()

    def router_features(
        self,
        images: ImageSequence,
        progress: Progress = SILENT,
        distributed: Distributed = SINGLE_PROCESS,
    ) -> Tensor:
        """What generative models see of images; does not depend on what is learned.

        The processes of an `distributed` compute a share each; all of them must call this.
        """
        with progress.track("routing", len(images)) as step:

            def see(index: Tensor) -> Tensor:
                features = self._encode(images[index])[0]
                step(len(index))
                return features

            return distributed.rows(batches(len(images)), see)

    def answer(
        self, images: ImageSequence, adapters: Tensor, progress: Progress = SILENT
    ) -> Tensor:
        """Class probabilities (n, classes) of images under given adapters, mixed in each batch."""
        parts = []
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        with progress.track("answering", len(images)) as step:
            for index in batches(len(images)):
                parts.append(self._finish(token_cache[index], adapters[index]))
                step(len(index))
        return torch.cat(parts)

    @property
    def combination(self) -> str:
        """Whose opinions make an answer."""
        if self.router.is_class_conditional:
            return "chosen adapter times router, among the adapter's classes"
        return "chosen adapter"

    def combine(
        self, answers: Tensor, logits: Tensor | None, adapters: Tensor, hard_routing: bool
    ) -> Tensor:
        """What the chosen adapters answer, and the router's class logits if it has any."""
        if logits is None:
            return answers
        if self._columns is None:
            tasks = [(record.adapter, record.classes) for record in self.tasks]
            self._columns = Columns.of(tasks, self.classes)
        return combine(answers, logits, self._columns, adapters, hard_routing)

    @torch.inference_mode()
    def adapter_logits(
        self, images: ImageSequence, adapter: int, distributed: Distributed = SINGLE_PROCESS
    ) -> Tensor:
        """What one adapter says of images: (n, its classes), before any softmax.

        The processes of an `distributed` compute a share each; all of them must call this.
        """
        head = self.heads[adapter]
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        said = distributed.rows(
            batches(len(images)),
            lambda index: logits(self.backbone, self.adapters[adapter], head, token_cache[index]),
        )
        return said[:, head.columns].cpu()

    def frozen_columns(self, classes: Sequence[Label]) -> list[int]:
        """Outputs of the checkpoint's classifier for labels: those they have, or the next free."""
        taken = {
            label: column
            for head in self.heads.values()
            for label, column in zip(head.classes, head.columns.tolist(), strict=True)
        }
        used = set(taken.values())
        free = (column for column in itertools.count() if column not in used)
        return [taken[label] if label in taken else next(free) for label in classes]

    def footprint(self) -> Footprint:
        """What must be kept, counted."""
        adapters = self.adapters.parameters
        heads = sum(head.parameters for head in self.heads.values())
        columns = sum(head.columns.nbytes for head in self.heads.values())
        feature_adapter = self.feature_adapter.parameters if self.feature_adapter else 0
        replay = sum(memory.bytes for memory in self.memories.values())
        return Footprint(
            adapters=adapters,
            heads=heads,
            routers=self.router.parameters + feature_adapter,
            replay_bytes=replay,
            bytes=4 * (adapters + heads + feature_adapter) + columns + self.router.bytes + replay,
        )

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder: PEFT adapters, safetensors, one manifest. Atomic."""
        if self._observer.waiting:
            raise RememberingError(
                f"{self._observer.waiting} observed images wait to be learned and cannot be saved; "
                "call flush first, with discard=True if they cannot be learned"
            )
        from remembering.storage.store import save

        save(self, Path(folder))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        backbone: str | Path | None = None,
        intact_only: bool = False,
        cache_bytes: int | None = None,
    ) -> RememberingTransformer:
        """Read a model that was saved, while others may be writing to the folder.

        Args:
            folder: what `save` was given.
            backbone: where the model's backbone is now, if it moved.
            intact_only: leave out the tasks whose files are damaged, instead of refusing.
            cache_bytes: at most so many bytes of adapters stay in memory between batches; the
                others are read when they are needed, with the same answers. No limit unless given.
        """
        from remembering.storage.store import load

        return load(Path(folder), backbone, intact_only, cache_bytes)

    def _require_tasks(self) -> None:
        if not self.tasks:
            raise RememberingError("the model has learned no task yet; call learn first")

    def _all_heads(self) -> Heads:
        if self._heads is None:
            self._heads = Heads(self.heads)
        return self._heads

    def _encode(self, images: Images) -> tuple[Tensor, Tensor]:
        return encode(
            self.backbone, self.router, self.feature_adapter, self.settings.first_layer, images
        )

    def _predict_batch(
        self, images: Images, novelty: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        features, tokens = self._encode(images)
        errors, logits = self.router.scores_and_logits(features)
        adapters = self.gate(errors.argmin(1))
        answers = self.combine(self._finish(tokens, adapters), logits, adapters, hard_routing=False)
        p = self.router.novelty(features).cpu() if novelty else errors.new_empty(0)
        return answers, errors, p

    @torch.inference_mode()
    def _finish(self, tokens: Tensor, adapters: Tensor) -> Tensor:
        """From the first adapted layer to class probabilities, each sample with its adapter."""
        active = self.adapters.mixed(adapters)
        last = self.backbone.finish(tokens, start=self.settings.first_layer, adapters=active)
        return self._all_heads().probabilities(self.backbone, last, adapters).cpu()

    def _prediction(
        self,
        probabilities: Tensor,
        errors: Tensor,
        tasks: Tensor,
        novelty: Tensor | None,
        rate: float | None,
    ) -> Prediction:
        return Prediction(
            labels=[self.classes[i] for i in probabilities.argmax(1).tolist()],
            probabilities=probabilities,
            classes=self.classes,
            tasks=[self.tasks[i].name for i in tasks.tolist()],
            adapters=self.gate(tasks),
            errors=errors,
            novelty=novelty,
            unknown=None if novelty is None or rate is None else novelty <= rate,
        )


def _some(images: Any) -> ImageSequence:
    """At least one image."""
    sequence = as_images(images)
    if not len(sequence):
        raise RememberingError("there are no images; give at least one")
    return sequence
