"""Brain-inspired replay (BI-R): replay generated features of old classes with soft targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import FrozenFeatures
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.learning.training import shuffled
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import generator

TEMPERATURE = 2.0
Parameters = dict[str, Tensor]


class BIR(FrozenFeatures):
    """Train a classifier and a variational autoencoder in one network that replays features.

    Two hidden layers h(x) of a feature x lead to the logits z and to q(u|x) = N(m(x), s²(x)); a
    decoder maps u back to features. Each class has its own prior p(u|c) = N(μ_c, σ_c²), learned
    with the other parameters, and its own gates, which switch off a random subset of the decoder's
    hidden units. A batch contains features x of task t and equally many features x̃ generated for
    old classes by the network as it was before the task:

        ℓ = 1/t (CE(z, y) + V(x, y)) + (1 − 1/t) (D(z(x̃), z_old(x̃)) + V(x̃, c)),
        V(x, c) = (½ ‖x − x̂‖² + KL(q(u|x) ‖ p(u|c))) / dim,   x̂ = decoder_c(u),
        D(z, z_old) = T² KL(softmax(z_old / T) ‖ softmax(z / T)),   T = 2,

    where x̃ of class c is decoder_c(u) of the old network with u drawn from p(u|c). z_old assigns
    probability 0 to new classes.

    Adaptation: all five components of the paper are present: internal replay, replay through
    feedback, conditional replay, gating by internal context and soft targets. Generated features
    use the prior and the gates of the class they were drawn for; the authors weight those of all
    classes by the old outputs. A label that reappears in a later task is a separate class of the
    generator in each task (when all labels reappear, the authors gate by task and share the
    prior). The frozen Transformer replaces the paper's pretrained convolutional layers, and the
    hidden layers on top of its features replace an adapter. As in the paper, training runs for
    `steps` per task instead of epochs.

    Defaults: `gates`, the fraction of switched-off units, was tuned on held-out training images of
    scikit-learn's digits. The paper uses 2,000 units and thousands of steps, for features of a much
    larger dimension. Digits need 100 of each; the defaults leave room for natural images.
    """

    name = "bir"
    title = "BI-R"
    reference = (
        "van de Ven et al. (2020), Brain-inspired replay for continual learning with artificial "
        "neural networks, Nature Communications 11:4069"
    )
    stores = "a classifier with two hidden layers, its decoder, and one prior per class"
    defaults: ClassVar[Mapping[str, float]] = {
        "hidden": 400,
        "latent": 100,
        "gates": 0.5,
        "steps": 300,
    }

    progress = SILENT

    def learn_task(self, task: Task, progress: Progress) -> None:
        self.progress = progress
        super().learn_task(task, progress)

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        classes = targets.unique()
        expanded = self.expanded_parameters(features, len(classes))
        theta = {name: value.requires_grad_() for name, value in expanded.items()}
        network = Network(theta, self.gates(features, len(theta["prior.mean"])))
        # The priors of this task follow those of all earlier tasks.
        priors = len(theta["prior.mean"]) - len(classes) + torch.searchsorted(classes, targets)
        old = Network(self.tensors, network.gates) if self.learned else None
        optimizer = torch.optim.Adam(theta.values(), lr=self.settings.lr)
        self.begin(theta)
        description = f"learning task {self.learned + 1} ({self.title})"
        with self.progress.track(description, int(self.options["steps"])) as step:
            for i, index in enumerate(self.batches(len(features))):
                rng = generator(self.settings.seed, "bir", self.learned, i)
                weight = 1 / (self.learned + 1)
                batch = features[index], targets[index], priors[index]
                loss = objective(network, old, *batch, weight, rng) + self.penalty(theta)
                if not math.isfinite(loss.item()):
                    raise RememberingError(
                        f"the loss of {self.title} became {loss.item()}; nothing was changed; "
                        f"try a lower lr than {self.settings.lr}"
                    )
                optimizer.zero_grad()
                loss.backward()
                before = {name: value.detach().clone() for name, value in theta.items()}
                optimizer.step()
                self.on_step_end(theta, before)
                step(1, f"loss {loss.item():.3f}")
        self.tensors |= {name: value.detach() for name, value in theta.items()}
        self.end()

    def begin(self, theta: Parameters) -> None:
        """Hook before a task is trained."""

    def penalty(self, theta: Parameters) -> Tensor:
        """Return a term that is added to the loss of each step."""
        return theta["bias"].new_zeros(())

    def on_step_end(self, theta: Parameters, before: Parameters) -> None:
        """Hook after an optimizer step; `theta` still has its gradients."""

    def end(self) -> None:
        """Hook after a task was trained; `tensors` has the new parameters."""

    def feature_scores(self, features: Tensor) -> Tensor:
        return Network(self.tensors, features).logits(features)

    @property
    def trained(self) -> int:
        return sum(self.tensors[name].numel() for name in PARAMETERS if name in self.tensors)

    def batches(self, count: int) -> Iterator[Tensor]:
        """Yield one batch of positions per step, reshuffling after each pass over the data."""
        remaining, epoch = int(self.options["steps"]), 0
        while remaining:
            order = shuffled(count, self.settings, self.learned, epoch, "bir")[:remaining]
            yield from order
            remaining, epoch = remaining - len(order), epoch + 1

    def expanded_parameters(self, features: Tensor, new_priors: int) -> Parameters:
        """Copy the parameters and add outputs for new classes and `new_priors` priors."""
        hidden, latent = int(self.options["hidden"]), int(self.options["latent"])
        rng = generator(self.settings.seed, "bir", "start", self.learned)
        if self.learned:
            theta = {name: self.tensors[name].clone() for name in PARAMETERS}
        else:
            initial = initial_parameters(features.shape[1], hidden, latent, rng)
            theta = {name: value.to(features) for name, value in initial.items()}
        added = len(self.classes) - len(theta["bias"])
        theta["weight"] = F.pad(theta["weight"], (0, 0, 0, added))
        theta["bias"] = F.pad(theta["bias"], (0, added))
        means = torch.randn(new_priors, latent, generator=rng).to(features)
        theta["prior.mean"] = torch.cat([theta["prior.mean"], means])
        theta["prior.spread"] = F.pad(theta["prior.spread"], (0, 0, 0, new_priors))
        return theta

    def gates(self, like: Tensor, priors: int) -> Tensor:
        """Return the decoder units that each class may use: 0 or 1, (priors, 2, hidden)."""
        shape, seed = (2, int(self.options["hidden"])), self.settings.seed
        uniform = [
            torch.rand(shape, generator=generator(seed, "bir", "gates", prior))
            for prior in range(priors)
        ]
        return (torch.stack(uniform) >= self.options["gates"]).to(like)


LAYERS = ("encode.0", "encode.1", "mean", "spread", "decode.0", "decode.1", "decode.2")
PARAMETERS = (
    *(f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")),
    "weight",
    "bias",
    "prior.mean",
    "prior.spread",
)
CLASSIFIER = tuple(name for name in PARAMETERS if name.startswith(("encode", "weight", "bias")))
"""Parameters that affect the logits; the others belong to the generator only."""


def initial_parameters(dim: int, hidden: int, latent: int, rng: torch.Generator) -> Parameters:
    """Return the parameters before the first task, without classes."""
    encoder = [(dim, hidden), (hidden, hidden), (hidden, latent), (hidden, latent)]
    decoder = [(latent, hidden), (hidden, hidden), (hidden, dim)]
    theta = {}
    for layer, (width, out) in zip(LAYERS, encoder + decoder, strict=True):
        bound = 1 / math.sqrt(width)
        theta[f"{layer}.weight"] = torch.empty(out, width).uniform_(-bound, bound, generator=rng)
        theta[f"{layer}.bias"] = torch.zeros(out)
    theta |= {"weight": torch.zeros(0, hidden), "bias": torch.zeros(0)}
    return theta | {"prior.mean": torch.zeros(0, latent), "prior.spread": torch.zeros(0, latent)}


@dataclass(frozen=True)
class Network:
    """Classifier and autoencoder; each `spread` is the logarithm of a variance."""

    theta: Mapping[str, Tensor]
    gates: Tensor

    def layer(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.theta[f"{name}.weight"], self.theta[f"{name}.bias"])

    def hidden(self, x: Tensor) -> Tensor:
        return self.layer("encode.1", self.layer("encode.0", x).relu()).relu()

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.hidden(x), self.theta["weight"], self.theta["bias"])

    def decode(self, latent: Tensor, priors: Tensor) -> Tensor:
        gates = self.gates[priors]
        x = self.layer("decode.0", latent).relu() * gates[:, 0]
        return self.layer("decode.2", self.layer("decode.1", x).relu() * gates[:, 1])

    def generate(self, priors: Tensor, rng: torch.Generator) -> Tensor:
        """Generate one feature for each of these priors."""
        mean, spread = self.theta["prior.mean"][priors], self.theta["prior.spread"][priors]
        return self.decode(sample_normal(mean, spread, rng), priors)

    def losses(self, x: Tensor, priors: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the logits of x and the mean of V(x, c)."""
        hidden = self.hidden(x)
        mean, spread = self.layer("mean", hidden), self.layer("spread", hidden)
        decoded = self.decode(sample_normal(mean, spread, rng), priors)
        prior_mean = self.theta["prior.mean"][priors]
        prior_spread = self.theta["prior.spread"][priors]
        squared = spread.exp() + (mean - prior_mean).square()
        divergence = prior_spread - spread + squared / prior_spread.exp() - 1
        loss = ((x - decoded).square().sum(1) + divergence.sum(1)).mean() / 2 / x.shape[1]
        return F.linear(hidden, self.theta["weight"], self.theta["bias"]), loss


def objective(
    network: Network,
    old: Network | None,
    x: Tensor,
    targets: Tensor,
    priors: Tensor,
    weight: float,
    rng: torch.Generator,
) -> Tensor:
    """Return ℓ of one step, in which the new task has this weight."""
    logits, generative = network.losses(x, priors, rng)
    loss = F.cross_entropy(logits, targets) + generative
    if old is None:
        return loss
    known = len(old.theta["bias"])
    priors = torch.randint(len(old.theta["prior.mean"]), (len(x),), generator=rng).to(x.device)
    with torch.no_grad():
        replayed = old.generate(priors, rng)
        soft_targets = (old.logits(replayed) / TEMPERATURE).softmax(1)
    logits, generative = network.losses(replayed, priors, rng)
    log_probabilities = (logits / TEMPERATURE).log_softmax(1)[:, :known]
    distilled = TEMPERATURE**2 * F.kl_div(log_probabilities, soft_targets, reduction="batchmean")
    return weight * loss + (1 - weight) * (distilled + generative)


def sample_normal(mean: Tensor, spread: Tensor, rng: torch.Generator) -> Tensor:
    """Sample from N(mean, exp(spread)) with gradients to both (reparameterization)."""
    return mean + (spread / 2).exp() * torch.randn(mean.shape, generator=rng).to(mean)
