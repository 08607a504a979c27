"""Every setting, typed. Light: `--help` reads this.

Defaults are the paper's, but for the router: the default one is that which is right for one image.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from remembering import schema
from remembering.errors import RememberingError

Tokens = Literal["mean", "flat", "pooled"]
Augment = Literal["none", "flip", "crop"]


@dataclass(frozen=True)
class RouterSettings:
    """The generative model that each task gets (section 3.3 of the paper)."""

    kind: Literal["gaussian", "autoencoder", "subspace"] = "gaussian"
    """gaussian: one per class, on deep features. autoencoder: trained, as in the paper. subspace:
    the autoencoder's closed-form optimum."""
    layers: tuple[int, ...] = ()
    """States that are read; 0 is the embedding output, as in the paper. By default what suits the
    kind: 0, or five from a third of the depth to the last for gaussian."""
    tokens: Tokens | None = None
    """mean: each token by its mean over the hidden dimension (the paper). flat: all tokens
    flattened. pooled: the CLS token and the mean of the others, normalised (gaussian)."""
    feature_rank: int = 8
    """Rank of the adapter through which deep states are read: trained on the first task, then kept
    as it is. 0 reads the frozen backbone."""
    feature_steps: int = 200
    """Steps that feature_adapter are trained for: enough for 1,000 images, harmless for 200."""
    flip: bool = True
    """Read the mirror image, too, and take the mean; not where routing costs no pass of its own."""
    replay: int = 0
    """Feature vectors of each task that are kept to fit_logit_correction the boundaries between classes of
    different tasks (gaussian); 0 keeps a few for calibration alone."""
    latent: int = 1
    """Width of the bottleneck."""
    hidden: int = 0
    """Hidden width of the four-layer autoencoder; 0 is the two-layer one."""
    epochs: int = 10
    lr: float = 5e-3
    batch_size: int = 128

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
        if list(self.layers) != sorted(set(self.layers)) or min(self.layers, default=0) < 0:
            raise RememberingError(
                f"router.layers = {self.layers} must be increasing depths from 0 on"
            )
        if self.kind != "gaussian" and self.replay:
            raise RememberingError(
                f"router.replay belongs to the gaussian router; a {self.kind} one has no "
                "boundaries between classes"
            )
        if self.kind != "autoencoder" and self.hidden:
            raise RememberingError(
                f"router.hidden belongs to the autoencoder; a {self.kind} router has no hidden "
                "layer"
            )

    def resolved(self, depth: int) -> RouterSettings:
        """With everything said that was left open, for a backbone of so many layers."""
        deep = self.kind == "gaussian"
        spread = sorted({max(1, round(depth * (2 + i) / 6)) for i in range(5)})
        return replace(
            self,
            layers=self.layers or (tuple(spread) if deep else (0,)),
            tokens=self.tokens or ("pooled" if deep else "mean"),
        )


@dataclass(frozen=True)
class Settings:
    """How a model learns a task."""

    rank: int = 1
    """Rank of the LoRA adapters."""
    first_layer: int = 0
    """Adapters act from this layer on; below it the backbone is computed once per image."""
    head: Literal["linear", "frozen"] = "linear"
    """linear: one trained head per adapter. frozen: the checkpoint's own classifier."""
    epochs: int = 10
    """Epochs per task."""
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.01
    augment: Augment = "none"
    """What is changed at random in a task's images each time they are learned from. flip: mirrored.
    crop: moved by up to an eighth, and mirrored. The layers below `first_layer` are then computed
    in every epoch; with none they are computed once."""
    capacity: int | None = None
    """At most this many adapters (the paper's E); a new one then absorbs the most similar."""
    memory: int = 512
    """Replay images per task (the paper's M); kept only if there is a capacity."""
    alpha: float = 0.5
    """Weight of the new task against distillation of the old when adapters are fused."""
    seed: int = 0
    router: RouterSettings = field(default_factory=RouterSettings)

    def __post_init__(self) -> None:
        schema.check(self, "settings")
        _at_least("rank", self.rank, 1)
        _at_least("first_layer", self.first_layer, 0)
        _at_least("epochs", self.epochs, 1)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("memory", self.memory, 1)
        _at_least("seed", self.seed, 0)
        _positive("lr", self.lr)
        if not 0 <= self.weight_decay < 1e6:
            raise RememberingError(f"weight_decay = {self.weight_decay} must lie from 0 to 1e6")
        if not 0 < self.alpha <= 1:
            raise RememberingError(f"alpha = {self.alpha} must lie above 0 and at most at 1")
        if self.capacity is not None:
            _at_least("capacity", self.capacity, 1)


def _at_least(name: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise RememberingError(f"{name} = {value} must be at least {lowest}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < 1e6:
        raise RememberingError(f"{name} = {value} must lie above 0 and below 1e6")
