"""Settings of a model. Their docstrings are the help texts of the command line.

This module imports no heavy library, so that `--help` stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from remembering import schema
from remembering.errors import RememberingError

Tokens = Literal["mean", "flat", "pooled", "moments"]
Augment = Literal["none", "shift", "flip", "crop", "resized_crop"]


@dataclass(frozen=True)
class RouterSettings:
    """The router, which decides which adapter answers: a generative model per task.

    Attributes:
        kind: gaussian: one Gaussian per class on the first frozen layers. autoencoder: one trained
            autoencoder per task, as in the paper. subspace: the closed-form optimum of the linear
            autoencoder.
        layers: Layers whose outputs the router reads; 0 is the embedding output. If empty, layer 0
            as in the paper, or for gaussian the first two layers.
        tokens: How tokens become a feature vector. mean: the mean of each token over the hidden
            dimension, as in the paper. flat: all tokens, flattened. pooled: the CLS token and the
            mean of the other tokens, normalised. moments: mean and standard deviation over the
            patch tokens. If None, moments for gaussian, otherwise mean.
        shrinkage: Weight of the diagonal in the covariance of the gaussian router, in units of the
            number of features.
        latent: Latent dimension of the autoencoder, or dimension of the subspace.
        hidden: Hidden dimension of a four-layer autoencoder. 0: an autoencoder of two layers.
        epochs: Training epochs of an autoencoder.
        lr: Learning rate of an autoencoder.
        batch_size: Batch size of an autoencoder.
        form: linear: the autoencoder of the paper. sigmoid: that of its authors' script, with
            biases, a ReLU after every layer but the last, and a sigmoid after the last.
        weight_decay: Weight decay of an autoencoder.
    """

    kind: Literal["gaussian", "autoencoder", "subspace"] = "gaussian"
    layers: tuple[int, ...] = ()
    tokens: Tokens | None = None
    shrinkage: float = 0.25
    latent: int = 1
    hidden: int = 0
    epochs: int = 10
    lr: float = 5e-3
    batch_size: int = 128
    form: Literal["linear", "sigmoid"] = "linear"
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        schema.check(self, "settings", "router")
        _at_least("router.latent", self.latent, 1)
        _at_least("router.hidden", self.hidden, 0)
        _at_least("router.epochs", self.epochs, 1)
        _at_least("router.batch_size", self.batch_size, 1)
        _positive("router.lr", self.lr)
        _decay("router.weight_decay", self.weight_decay)
        _positive("router.shrinkage", self.shrinkage)
        _increasing("router.layers", self.layers)
        if self.kind != "autoencoder" and self.hidden:
            raise RememberingError(
                f"router.hidden requires router.kind = autoencoder; the {self.kind} router has no "
                "hidden layer"
            )
        if self.kind != "autoencoder" and self.form != "linear":
            raise RememberingError(
                f"router.form = {self.form} requires router.kind = autoencoder; the {self.kind} "
                "router has no activations"
            )

    def resolved(self, depth: int) -> RouterSettings:
        """Return these settings with explicit layers and tokens, for a backbone of some depth."""
        gaussian = self.kind == "gaussian"
        first = tuple(range(1, min(2, depth) + 1)) if gaussian else (0,)
        return replace(
            self,
            layers=self.layers or first,
            tokens=self.tokens or ("moments" if gaussian else "mean"),
        )


@dataclass(frozen=True)
class ClassifierSettings:
    """The classifier, which decides which of an adapter's classes an image shows.

    Attributes:
        kind: gaussian: one Gaussian per class on the adapter's features, with one covariance per
            adapter. head: the adapter's linear head, as in the paper.
        layers: Layers whose CLS and mean tokens are the features. If empty, five layers from a
            third of the depth to the last.
        shrinkage: Weight of the diagonal in the covariance, in units of the number of features.
        replay: Feature vectors held out per task, at most a sixth of its images, to fit a logit
            correction between the classes of different tasks. 0: no correction; only the few
            vectors for calibration are held out.
        second_view: Share of images, those with the smallest margins, that are also classified by
            their horizontal flip. 0: none. 1: all.
    """

    kind: Literal["gaussian", "head"] = "gaussian"
    layers: tuple[int, ...] = ()
    shrinkage: float = 0.5
    replay: int = 0
    second_view: float = 0.1

    @property
    def tokens(self) -> Tokens:
        """How tokens become a feature vector."""
        return "pooled"

    def __post_init__(self) -> None:
        schema.check(self, "settings", "classifier")
        _at_least("classifier.replay", self.replay, 0)
        _positive("classifier.shrinkage", self.shrinkage)
        _increasing("classifier.layers", self.layers)
        if not 0 <= self.second_view <= 1:
            raise RememberingError(
                f"classifier.second_view = {self.second_view} must be a share from 0 to 1"
            )
        if self.kind == "head" and (self.replay or self.layers):
            raise RememberingError(
                "classifier.replay and classifier.layers require classifier.kind = gaussian"
            )

    def resolved(self, depth: int) -> ClassifierSettings:
        """Return these settings with explicit layers, for a backbone of some depth."""
        if self.kind == "head":
            return self
        spread = sorted({max(1, round(depth * (2 + i) / 6)) for i in range(5)})
        return replace(self, layers=self.layers or tuple(spread))


@dataclass(frozen=True)
class FusionSettings:
    """How the adapter of a new task takes over the tasks of an old adapter.

    Attributes:
        start: copy: training starts from the old adapter and head. fresh: from a new adapter and
            head.
        labels: Targets of the replayed images. soft: the probabilities of the old adapter, with
            squared error, as in the paper. hard: their labels, with cross-entropy, as in the
            authors' script.
        replay: Replayed tasks. all: every task of the old adapter. nearest: the most similar one.
    """

    start: Literal["copy", "fresh"] = "copy"
    labels: Literal["soft", "hard"] = "soft"
    replay: Literal["all", "nearest"] = "all"

    def __post_init__(self) -> None:
        schema.check(self, "settings", "fusion")


@dataclass(frozen=True)
class Settings:
    """How a model learns tasks. The defaults are those that work best for single images.

    Attributes:
        adapters: When a task gets an adapter of its own. novelty: if its images are novel to the
            tasks of every adapter. task: always, as in the paper. first: only the first task.
        rank: Rank of the LoRA adapters.
        first_layer: First layer with an adapter. The layers before it are shared by all adapters.
        head: linear: a trained linear head per adapter. frozen: the classifier of the checkpoint.
        epochs: Training epochs of an adapter. If None, derived from the number of images. 0: no
            training; the classes are told apart by the features of the frozen backbone.
        batch_size: Images per training step.
        lr: Learning rate of adapters and heads.
        schedule: Learning rate schedule: constant as in the paper, or cosine.
        weight_decay: Weight decay of adapters and heads.
        augment: Random augmentation of the training images. shift: shifts by up to an eighth of
            the size. flip: horizontal flips. crop: both. resized_crop: flips, and parts of 8 to
            100 % of the area, enlarged to the whole. If None, shift; where flipped images are
            recognised as well as others, crop, and rotated images are classes of their own.
        capacity: Maximum number of adapters (E in the paper). When it is reached, a new task shares
            the most similar adapter. If None, there is no limit.
        memory: Replay images kept per task (M in the paper). If None, 512 under a capacity and none
            otherwise.
        consolidate_every: Consolidate an adapter each time it has received this many tasks; needs
            replay images. 0: only on request.
        exact_forgetting: Keep each task's share of the shared statistics, so that forget removes it
            exactly; 4 MB per task for a ViT-Ti/16. If False, forget scales the shared statistics
            down instead.
        alpha: Weight of the loss of the new task when adapters are fused; the rest is distillation.
        seed: Seed of all random numbers.
    """

    adapters: Literal["novelty", "task", "first"] = "novelty"
    rank: int = 8
    first_layer: int = 0
    head: Literal["linear", "frozen"] = "linear"
    epochs: int | None = None
    batch_size: int = 32
    lr: float = 1e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    weight_decay: float = 0.01
    augment: Augment | None = None
    capacity: int | None = None
    memory: int | None = None
    consolidate_every: int = 0
    exact_forgetting: bool = True
    alpha: float = 0.5
    seed: int = 0
    router: RouterSettings = field(default_factory=RouterSettings)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)
    fusion: FusionSettings = field(default_factory=FusionSettings)

    def __post_init__(self) -> None:
        schema.check(self, "settings")
        _at_least("rank", self.rank, 1)
        _at_least("first_layer", self.first_layer, 0)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("consolidate_every", self.consolidate_every, 0)
        _at_least("seed", self.seed, 0)
        _positive("lr", self.lr)
        _decay("weight_decay", self.weight_decay)
        trained = self.classifier.kind == "head"
        for name, lowest in (("epochs", int(trained)), ("memory", 0), ("capacity", 1)):
            if (value := getattr(self, name)) is not None:
                _at_least(name, value, lowest)
        if not 0 < self.alpha <= 1:
            raise RememberingError(f"alpha = {self.alpha} must be above 0 and at most 1")
        if self.adapters != "task" and self.classifier.kind == "head":
            raise RememberingError(
                f'adapters = "{self.adapters}" lets tasks share adapters, and a head only has the '
                'classes that it was trained on; use adapters = "task" or classifier.kind = '
                '"gaussian"'
            )
        if self.consolidate_every and not self.replay_images:
            raise RememberingError("consolidate_every needs replay images; set memory")
        if trained and self.capacity and not self.replay_images:
            raise RememberingError("heads under a capacity are fused on replay images; set memory")

    @classmethod
    def paper(cls, **overrides: Any) -> Settings:
        """Return the configuration of the paper: an adapter and an autoencoder per task.

        Args:
            overrides: Single settings by name, such as `capacity=3`.
        """
        schema.check_names(cls, overrides, "settings")
        base = cls(
            adapters="task",
            rank=1,
            first_layer=0,
            epochs=10,
            batch_size=128,
            schedule="constant",
            augment="none",
            router=RouterSettings(kind="autoencoder"),
            classifier=ClassifierSettings(kind="head"),
        )
        return replace(base, **overrides)

    @property
    def replay_images(self) -> int:
        """Replay images kept per task."""
        return (512 if self.capacity else 0) if self.memory is None else self.memory

    def epochs_for(self, images: int, rotates: bool = False) -> int:
        """Return the training epochs of an adapter for a number of images.

        The rule gives 12 epochs, but at least 3,200 and at most 12,800 image passes. If
        orientations are classes of their own, it gives at least 40 epochs or 6,400 passes,
        whichever is less. It was chosen on training images (docs/routing.md).
        """
        if self.epochs is not None:
            return self.epochs
        least = min(max(40 * images, 3200), 6400) if rotates else 3200
        return max(1, round(min(max(12 * images, least), 12800) / images))

    def resolved(self, depth: int) -> Settings:
        """Return these settings with everything explicit, for a backbone of some depth."""
        return replace(
            self,
            router=self.router.resolved(depth),
            classifier=self.classifier.resolved(depth),
        )


def _at_least(name: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise RememberingError(f"{name} = {value} must be at least {lowest}")


def _decay(name: str, value: float) -> None:
    if not 0 <= value < 1e6:
        raise RememberingError(f"{name} = {value} must be at least 0 and below 1e6")


def _positive(name: str, value: float) -> None:
    if not 0 < value < 1e6:
        raise RememberingError(f"{name} = {value} must be above 0 and below 1e6")


def _increasing(name: str, layers: tuple[int, ...]) -> None:
    if list(layers) != sorted(set(layers)) or min(layers, default=0) < 0:
        raise RememberingError(f"{name} = {layers} must be increasing numbers of at least 0")
