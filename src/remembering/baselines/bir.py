"""Brain-inspired replay: features of old classes are dreamt, and answered as they were."""

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
    """A classifier and a variational autoencoder in one network, which replays its own features.

    From a feature x, two hidden layers h(x) lead to the outputs z and to q(u|x) = N(m(x), s²(x));
    a decoder leads back. Each class has its own prior p(u|c) = N(μ_c, σ_c²), learned with the
    rest, and its own gates: a random part of the decoder's hidden units is silent for class c. On
    features of task t, and on as many that the network before this task dreams of its classes,

        ℓ = 1/t (CE(z, y) + V(x, y)) + (1 − 1/t) (D(z(x̃), z_old(x̃)) + V(x̃, c)),
        V(x, c) = (½ ‖x − x̂‖² + KL(q(u|x) ‖ p(u|c))) / dim,   x̂ = decoder_c(u),
        D(z, z_old) = T² KL(softmax(z_old / T) ‖ softmax(z / T)),   T = 2,

    where a dream x̃ of class c is decoder_c(u) of the old network for u drawn from p(u|c), and
    z_old says that it is of no new class.

    The five parts of the paper's method are here: replay of internal features, through feedback,
    conditional, gated, with soft targets. Adapted: dreams have the prior and the gates of the class
    they were drawn for, where the authors weigh those of all classes by the old outputs. A label
    that comes back is another class to the generator in each of its tasks (where all labels come
    back, the authors gate by task and share the prior). The layers that stay as they are, in the
    paper pretrained convolutions, are the frozen Transformer, and the hidden layers above its
    features take the place of an adapter. They are trained for `steps` a task, as in the
    paper, and not for epochs. The part of silent gates was chosen on training images of
    scikit-learn's digits that were held out. The paper has 2,000 units and thousands of steps, for
    features that are many more; digits need 100 of either, and natural images were given room.
    """

    name = "bir"
    title = "BI-R"
    reference = (
        "van de Ven et al. (2020), Brain-inspired replay for continual learning with artificial "
        "neural networks, Nature Communications 11:4069"
    )
    stores = "a network of two hidden layers with its decoder, and the prior of each class"
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
        own = targets.unique()
        grown = self.grown(features, len(own))
        theta = {name: value.requires_grad_() for name, value in grown.items()}
        now = Network(theta, self.gates(features, len(theta["prior.mean"])))
        # Places in the generator: those of this task come last.
        places = len(theta["prior.mean"]) - len(own) + torch.searchsorted(own, targets)
        old = Network(self.tensors, now.gates) if self.learned else None
        optimizer = torch.optim.Adam(theta.values(), lr=self.settings.lr)
        self.begin(theta)
        what = f"learning task {self.learned + 1} ({self.title})"
        with self.progress.track(what, int(self.options["steps"])) as step:
            for i, index in enumerate(self.batches(len(features))):
                rng = generator(self.settings.seed, "bir", self.learned, i)
                share = 1 / (self.learned + 1)
                new = features[index], targets[index], places[index]
                loss = objective(now, old, *new, share, rng) + self.penalty(theta)
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
        """Before a task is trained."""

    def penalty(self, theta: Parameters) -> Tensor:
        """What a step adds to the loss."""
        return theta["bias"].new_zeros(())

    def on_step_end(self, theta: Parameters, before: Parameters) -> None:
        """After a step, with its gradients still there."""

    def end(self) -> None:
        """After a task is trained."""

    def feature_scores(self, features: Tensor) -> Tensor:
        return Network(self.tensors, features).outputs(features)

    @property
    def trained(self) -> int:
        return sum(self.tensors[name].numel() for name in PARAMETERS if name in self.tensors)

    def batches(self, count: int) -> Iterator[Tensor]:
        """As many as there are steps, from one shuffled order after another."""
        left, epoch = int(self.options["steps"]), 0
        while left:
            order = shuffled(count, self.settings, self.learned, epoch, "bir")[:left]
            yield from order
            left, epoch = left - len(order), epoch + 1

    def grown(self, features: Tensor, places: int) -> Parameters:
        """A copy of the parameters, with outputs for new classes, and so many more priors."""
        hidden, latent = int(self.options["hidden"]), int(self.options["latent"])
        rng = generator(self.settings.seed, "bir", "start", self.learned)
        if self.learned:
            theta = {name: self.tensors[name].clone() for name in PARAMETERS}
        else:
            widths = features.shape[1], hidden, latent
            theta = {name: value.to(features) for name, value in started(*widths, rng).items()}
        added = len(self.classes) - len(theta["bias"])
        theta["weight"] = F.pad(theta["weight"], (0, 0, 0, added))
        theta["bias"] = F.pad(theta["bias"], (0, added))
        means = torch.randn(places, latent, generator=rng).to(features)
        theta["prior.mean"] = torch.cat([theta["prior.mean"], means])
        theta["prior.spread"] = F.pad(theta["prior.spread"], (0, 0, 0, places))
        return theta

    def gates(self, like: Tensor, places: int) -> Tensor:
        """Which hidden units of the decoder each class may use: (places, 2, hidden)."""
        shape, seed = (2, int(self.options["hidden"])), self.settings.seed
        drawn = [
            torch.rand(shape, generator=generator(seed, "bir", "gates", place))
            for place in range(places)
        ]
        return (torch.stack(drawn) >= self.options["gates"]).to(like)


LAYERS = ("encode.0", "encode.1", "mean", "spread", "decode.0", "decode.1", "decode.2")
PARAMETERS = (
    *(f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")),
    "weight",
    "bias",
    "prior.mean",
    "prior.spread",
)
ANSWERING = tuple(name for name in PARAMETERS if name.startswith(("encode", "weight", "bias")))
"""Those that outputs depend on; the others are of the generator."""


def started(dim: int, hidden: int, latent: int, rng: torch.Generator) -> Parameters:
    """Parameters before the first task, for no classes."""
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
    """Classifier and autoencoder; spreads are logarithms of variances."""

    theta: Mapping[str, Tensor]
    gates: Tensor

    def layer(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.theta[f"{name}.weight"], self.theta[f"{name}.bias"])

    def hidden(self, x: Tensor) -> Tensor:
        return self.layer("encode.1", self.layer("encode.0", x).relu()).relu()

    def outputs(self, x: Tensor) -> Tensor:
        return F.linear(self.hidden(x), self.theta["weight"], self.theta["bias"])

    def decoded(self, latent: Tensor, places: Tensor) -> Tensor:
        gates = self.gates[places]
        x = self.layer("decode.0", latent).relu() * gates[:, 0]
        return self.layer("decode.2", self.layer("decode.1", x).relu() * gates[:, 1])

    def dreamt(self, places: Tensor, rng: torch.Generator) -> Tensor:
        """A feature of each of these classes."""
        mean, spread = self.theta["prior.mean"][places], self.theta["prior.spread"][places]
        return self.decoded(drawn(mean, spread, rng), places)

    def losses(self, x: Tensor, places: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The outputs for x, and V(x, c)."""
        hidden = self.hidden(x)
        mean, spread = self.layer("mean", hidden), self.layer("spread", hidden)
        back = self.decoded(drawn(mean, spread, rng), places)
        at, wide = self.theta["prior.mean"][places], self.theta["prior.spread"][places]
        divergence = wide - spread + (spread.exp() + (mean - at).square()) / wide.exp() - 1
        loss = ((x - back).square().sum(1) + divergence.sum(1)).mean() / 2 / x.shape[1]
        return F.linear(hidden, self.theta["weight"], self.theta["bias"]), loss


def objective(
    now: Network,
    old: Network | None,
    x: Tensor,
    targets: Tensor,
    places: Tensor,
    share: float,
    rng: torch.Generator,
) -> Tensor:
    """ℓ of one step, in which the new task has this share."""
    outputs, generative = now.losses(x, places, rng)
    loss = F.cross_entropy(outputs, targets) + generative
    if old is None:
        return loss
    known = len(old.theta["bias"])
    places = torch.randint(len(old.theta["prior.mean"]), (len(x),), generator=rng).to(x.device)
    with torch.no_grad():
        dream = old.dreamt(places, rng)
        wanted = (old.outputs(dream) / TEMPERATURE).softmax(1)
    outputs, generative = now.losses(dream, places, rng)
    said = (outputs / TEMPERATURE).log_softmax(1)[:, :known]
    distilled = TEMPERATURE**2 * F.kl_div(said, wanted, reduction="batchmean")
    return share * loss + (1 - share) * (distilled + generative)


def drawn(mean: Tensor, spread: Tensor, rng: torch.Generator) -> Tensor:
    """From N(mean, exp(spread)), with gradients to both."""
    return mean + (spread / 2).exp() * torch.randn(mean.shape, generator=rng).to(mean)
