"""The complete answer path as one module: from prepared images to probabilities and p-values.

The steps are those of `inference`, for images that are answered alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remembering.backbones.backbone import Backbone
from remembering.export.adapters import GatheredAdapters, MergedAdapter
from remembering.export.embedding import Embedding
from remembering.export.gaussians import GaussianTables
from remembering.export.p_values import PValues
from remembering.export.routers import RouterGraph, router_graph
from remembering.inference.encoding import deep_features
from remembering.state import ModelState


class Answers(NamedTuple):
    """The outputs of the graph.

    Attributes:
        probabilities: (n, labels), float32.
        p_value: Of the hypothesis that an image belongs to a learned task, (n,), float64.
        task: Position of the task of each answer, (n,), int64.
    """

    probabilities: Tensor
    p_value: Tensor
    task: Tensor


class AnswerGraph(nn.Module):
    """Answers a batch of prepared images, uint8 (n, channels, size, size).

    Args:
        state: What was learned, on the CPU.
        backbone: The frozen backbone, on the CPU.
    """

    calibration: PValues
    router: RouterGraph | None
    gate: Tensor

    def __init__(self, state: ModelState, backbone: Backbone):
        super().__init__()
        self.settings, self.backbone = state.settings, backbone
        self.embedding = Embedding(backbone)
        adapters = list(state.adapters.values())
        self.adapters = (
            MergedAdapter(backbone, adapters[0])
            if len(adapters) == 1
            else GatheredAdapters(adapters)
        )
        positions = {number: i for i, number in enumerate(state.adapters)}
        gate = torch.tensor([positions[number] for number in state.gate.tolist()])
        self.register_buffer("gate", gate)

    def frozen(self, images: Tensor) -> Tensor:
        """Return the tokens that enter the first adapted layer."""
        return self.backbone.run(self.embedding(images), stop=self.settings.first_layer)

    def route(self, router: RouterGraph, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return router features, and the tokens that enter the first adapted layer."""
        read, first_layer = self.settings.router.layers, self.settings.first_layer
        depths = sorted({*read, first_layer})
        found = self.backbone.states(self.embedding(images), depths)
        states = dict(zip(depths, found, strict=True))
        return router.router.features([states[depth] for depth in read]), states[first_layer]


class GaussianGraph(AnswerGraph):
    """The default model: a router if there are several adapters, and class Gaussians."""

    tasks: Tensor
    thresholds: Tensor

    def __init__(self, state: ModelState, backbone: Backbone):
        super().__init__(state, backbone)
        self.router = router_graph(state.router) if len(state.adapters) > 1 else None
        columns = state.columns
        classifiers = [state.classifiers[number] for number in state.adapters]
        owned = [(columns.adapter == number).nonzero().flatten() for number in state.adapters]
        self.tables = GaussianTables([item.gaussians for item in classifiers], owned)
        self.calibration = self.tables.calibration
        self.by_label = LabelSums(columns.label, len(state.classes))
        never = -torch.inf
        thresholds = [item.margin_threshold if item.uses_flip else never for item in classifiers]
        self.has_second_view = max(thresholds) > never and len(columns.label) > 1
        self.register_buffer("tasks", columns.task)
        self.register_buffer("thresholds", torch.tensor(thresholds, dtype=torch.float64))

    def forward(self, images: Tensor) -> Answers:
        if self.router is None:
            tokens = self.frozen(images)
            adapters = torch.zeros_like(images[:, 0, 0, 0], dtype=torch.long)
        else:
            features, tokens = self.route(self.router, images)
            adapters = self.gate[self.router.scores(features).argmin(1)]
        features = self._features(tokens, adapters)
        likelihoods = self.tables.likelihoods(features)
        p_values = self.tables.p_values(features, likelihoods, adapters)
        foreign = self.tables.owner != adapters[:, None]
        logits = self.tables.logits(features, likelihoods).masked_fill(foreign, -torch.inf)
        if self.has_second_view:
            top = logits.topk(2, dim=1).values
            small = top[:, 0] - top[:, 1] < self.thresholds[adapters]
            operands = images, logits, adapters, small
            logits = torch.cond(small.any(), self._with_second_view, _unchanged, operands)
        posterior = logits.softmax(1)
        probabilities = self.by_label(posterior).float()
        others = self.by_label.labels != probabilities.argmax(1, keepdim=True)
        best = posterior.masked_fill(others, -1).argmax(1)
        return Answers(probabilities, p_values, self.tasks[best])

    def _features(self, tokens: Tensor, adapters: Tensor) -> Tensor:
        layers, first_layer = self.settings.classifier.layers, self.settings.first_layer
        active = self.adapters.active(adapters)
        return deep_features(self.backbone, tokens, layers, first_layer, active)

    def _with_second_view(
        self, images: Tensor, logits: Tensor, adapters: Tensor, small: Tensor
    ) -> Tensor:
        """Average the logits of images with small margins and those of their flips."""
        rows = small.nonzero()[:, 0]
        torch._check(rows.shape[0] > 0)
        features = self._features(self.frozen(images[rows].flip(-1)), adapters[rows])
        flipped = self.tables.logits(features, self.tables.likelihoods(features))
        return logits.index_put((rows,), (logits[rows] + flipped) / 2)


def _unchanged(images: Tensor, logits: Tensor, adapters: Tensor, small: Tensor) -> Tensor:
    return logits.clone()  # a branch must not return its input


class HeadGraph(AnswerGraph):
    """The paper's configuration: the router chooses a task, the head of its adapter answers."""

    router: RouterGraph
    weight: Tensor
    bias: Tensor
    owner: Tensor
    has: Tensor

    def __init__(self, state: ModelState, backbone: Backbone):
        super().__init__(state, backbone)
        self.router = router_graph(state.router)
        self.calibration = self.router.calibration
        heads = [state.heads[number] for number in state.adapters]
        self.head = heads[0]
        position = {label: i for i, label in enumerate(state.classes)}
        labels = [position[label] for head in heads for label in head.classes]
        self.by_label = LabelSums(torch.tensor(labels), len(position))
        owner = [i for i, head in enumerate(heads) for _ in head.classes]
        self.register_buffer("owner", torch.tensor(owner))
        weights = [head.weight[head.columns] for head in heads]
        self.register_buffer("weight", torch.cat(weights).double())
        biases = [head.bias[head.columns] for head in heads]
        self.register_buffer("bias", torch.cat(biases).double())
        has = torch.zeros(len(position), len(state.tasks), dtype=torch.bool)
        has[state.columns.label, state.columns.task] = True
        self.register_buffer("has", has)

    def forward(self, images: Tensor) -> Answers:
        features, tokens = self.route(self.router, images)
        scores = self.router.scores(features)
        adapters = self.gate[scores.argmin(1)]
        active, start = self.adapters.active(adapters), self.settings.first_layer
        last = self.backbone.finish(tokens, start=start, adapters=active)
        logits = F.linear(self.head.features(self.backbone, last).double(), self.weight, self.bias)
        foreign = self.owner != adapters[:, None]
        own = logits.masked_fill(foreign, -torch.inf).softmax(1)
        probabilities = self.by_label(own).float()
        # As `inference.classify.tasks_of_labels`: the most familiar task that has the label.
        possible = self.has[probabilities.argmax(1)] & (self.gate == adapters[:, None])
        tasks = scores.masked_fill(~possible, torch.inf).argmin(1)
        return Answers(probabilities, self.router.p_values(features), tasks)


class LabelSums(nn.Module):
    """Adds up the columns of each label: (n, columns) to (n, labels).

    Args:
        labels: Label of each column.
        count: Number of labels.
    """

    labels: Tensor

    def __init__(self, labels: Tensor, count: int):
        super().__init__()
        self.count = count
        self.recurring = len(labels) > count  # otherwise labels are numbered as the columns
        self.register_buffer("labels", labels)

    def forward(self, columns: Tensor) -> Tensor:
        if not self.recurring:
            return columns
        zeros = columns.new_zeros(columns.shape[0], self.count)
        return zeros.scatter_add(1, self.labels.expand_as(columns), columns)


@torch.no_grad()
def answer_graph(state: ModelState, backbone: Backbone) -> AnswerGraph:
    """Return the graph of a model that has learned at least one task, on the CPU."""
    gaussian = state.settings.classifier.kind == "gaussian"
    graph = (GaussianGraph if gaussian else HeadGraph)(state, backbone).eval()
    for module in graph.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_inference():  # cached by a prediction; torch does not export these
                module.register_buffer(name, buffer.clone())
    return graph
