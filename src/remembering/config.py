"""Settings of a model. Their docstrings are the help texts of the command line.

The defaults are those of the paper, except for the router: the default router is the one that works
best for single images. This module imports no heavy library, so that `--help` stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from remembering import schema
from remembering.errors import RememberingError

Tokens = Literal["mean", "flat", "pooled"]
Augment = Literal["none", "flip", "crop", "resized_crop"]


@dataclass(frozen=True)
class RouterSettings:
    """The router: a generative model per task that scores how well an image fits the task.

    Attributes:
        kind: gaussian: one Gaussian per class on deep features. autoencoder: one trained
            autoencoder per task, as in the paper. subspace: the closed-form optimum of the linear
            autoencoder.
        layers: Layers whose outputs the router reads; 0 is the embedding output. If empty, layer 0
            as in the paper, or for gaussian five layers from a third of the depth to the last.
        tokens: How tokens become a feature vector. mean: the mean of each token over the hidden
            dimension, as in the paper. flat: all tokens, flattened. pooled: the CLS token and the
            mean of the other tokens, normalised. If None, pooled for gaussian, otherwise mean.
        feature_rank: Rank of the feature adapter, the LoRA adapter under which the router reads
            deep layers. It is trained on the first task and then frozen. 0: read the backbone
            without an adapter.
        feature_steps: Training steps of the feature adapter.
        flip: Average the features of the image and of its horizontal flip. Without effect if
            routing needs no forward pass of its own.
        replay: Feature vectors kept per task to fit a logit correction between the classes of
            different tasks (gaussian only). 0: no correction; only the few vectors for calibration
            are kept.
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
    feature_rank: int = 8
    feature_steps: int = 200
    flip: bool = True
    replay: int = 0
    latent: int = 1
    hidden: int = 0
    epochs: int = 10
    lr: float = 5e-3
    batch_size: int = 128
    form: Literal["linear", "sigmoid"] = "linear"
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        schema.check(self, "settings", "router")
        _at_least("router.feature_rank", self.feature_rank, 0)
        _at_least("router.feature_steps", self.feature_steps, 1)
        _at_least("router.replay", self.replay, 0)
        _at_least("router.latent", self.latent, 1)
        _at_least("router.hidden", self.hidden, 0)
        _at_least("router.epochs", self.epochs, 1)
        _at_least("router.batch_size", self.batch_size, 1)
        _positive("router.lr", self.lr)
        _decay("router.weight_decay", self.weight_decay)
        if list(self.layers) != sorted(set(self.layers)) or min(self.layers, default=0) < 0:
            raise RememberingError(
                f"router.layers = {self.layers} must be increasing numbers of at least 0"
            )
        if self.kind != "gaussian" and self.replay:
            raise RememberingError(
                f"router.replay requires router.kind = gaussian; the {self.kind} router does not "
                "model classes"
            )
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
        deep = self.kind == "gaussian"
        spread = sorted({max(1, round(depth * (2 + i) / 6)) for i in range(5)})
        return replace(
            self,
            layers=self.layers or (tuple(spread) if deep else (0,)),
            tokens=self.tokens or ("pooled" if deep else "mean"),
        )


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
    """How a model learns tasks.

    Attributes:
        rank: Rank of the LoRA adapters.
        first_layer: First layer with an adapter. The output of the layers before it is computed
            once per image and cached.
        head: linear: a trained linear head per adapter. frozen: the classifier of the checkpoint.
        epochs: Training epochs per task.
        batch_size: Images per training step.
        lr: Learning rate of adapters and heads.
        weight_decay: Weight decay of adapters and heads.
        augment: Random augmentation of the training images. flip: horizontal flips. crop: flips,
            and shifts by up to an eighth of the size. resized_crop: flips, and parts of 8 to 100 %
            of the area, enlarged to the whole. With augmentation, the layers before first_layer
            are computed in every epoch instead of once.
        capacity: Maximum number of adapters (E in the paper). When it is reached, the adapter of a
            new task is fused with the most similar one. If None, there is no limit.
        memory: Replay images kept per task (M in the paper); only used with a capacity.
        alpha: Weight of the loss of the new task when adapters are fused; the rest is distillation.
        seed: Seed of all random numbers.
    """

    rank: int = 1
    first_layer: int = 0
    head: Literal["linear", "frozen"] = "linear"
    epochs: int = 10
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.01
    augment: Augment = "none"
    capacity: int | None = None
    memory: int = 512
    alpha: float = 0.5
    seed: int = 0
    router: RouterSettings = field(default_factory=RouterSettings)
    fusion: FusionSettings = field(default_factory=FusionSettings)

    def __post_init__(self) -> None:
        schema.check(self, "settings")
        _at_least("rank", self.rank, 1)
        _at_least("first_layer", self.first_layer, 0)
        _at_least("epochs", self.epochs, 1)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("memory", self.memory, 1)
        _at_least("seed", self.seed, 0)
        _positive("lr", self.lr)
        _decay("weight_decay", self.weight_decay)
        if not 0 < self.alpha <= 1:
            raise RememberingError(f"alpha = {self.alpha} must be above 0 and at most 1")
        if self.capacity is not None:
            _at_least("capacity", self.capacity, 1)


def _at_least(name: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise RememberingError(f"{name} = {value} must be at least {lowest}")


def _decay(name: str, value: float) -> None:
    if not 0 <= value < 1e6:
        raise RememberingError(f"{name} = {value} must be at least 0 and below 1e6")


def _positive(name: str, value: float) -> None:
    if not 0 < value < 1e6:
        raise RememberingError(f"{name} = {value} must be above 0 and below 1e6")
