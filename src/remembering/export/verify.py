"""Verification: the answers of an ONNX file, run by onnxruntime, against those of `inference`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.conversion import as_images
from remembering.data.images import ImageSequence, ImagesLike
from remembering.errors import RememberingError
from remembering.inference.predict import predict
from remembering.state import ModelState

TOLERANCE = 1e-4
"""Largest accepted difference of probabilities, and of p-values besides one step of theirs."""
MAX_IMAGES = 64
"""Of given images or replay images, at most this many are used."""
PATTERNS = 16
"""Number of generated images that are used as well."""


@dataclass(frozen=True)
class Verification:
    """How far the answers of an ONNX file are from those of the model.

    Attributes:
        images: Number of images that were answered by both.
        adapters: Number of adapters that answered some of them.
        difference: Largest difference of a probability.
        p_value_difference: Largest difference of a p-value.
    """

    images: int
    adapters: int
    difference: float
    p_value_difference: float


def verify(
    onnx: bytes,
    state: ModelState,
    backbone: Backbone,
    channels: int,
    p_value_step: float,
    images: ImagesLike | None = None,
) -> Verification:
    """Compare an ONNX file with the model that it was exported from.

    Args:
        onnx: Content of the file.
        state: What was learned.
        backbone: The frozen backbone.
        channels: Channels of the input of the file.
        p_value_step: Largest distance between neighbouring p-values. A score within rounding of
            a calibration score may fall on either side of it.
        images: Images to answer. If None, replay images, where the model has some.

    Raises:
        RememberingError: If the answers differ by more than `TOLERANCE`.
    """
    parts: list[ImageSequence] = [memory.images for memory in state.memories.values()]
    if images is not None:
        parts = [as_images(images)]
        if not len(parts[0]):
            raise RememberingError("there are no images to verify with; give at least one")
    prepared = [backbone.prepare(part[_spread(part, MAX_IMAGES // len(parts))]) for part in parts]
    shape = (backbone.preprocessing.channels, backbone.image_size)
    inputs = torch.cat([*prepared, _patterns(*shape)])
    expected = predict(state, _without_resizing(backbone), inputs, false_alarm_rate=0.5)
    assert expected.novelty is not None
    if len(inputs[0]) != channels:
        inputs = inputs.expand(-1, channels, -1, -1)
    # One alone and the others at once: the batch size must not matter.
    session = _session(onnx)
    batches = inputs.split([1, len(inputs) - 1])
    found = [session.run(None, {"images": batch.numpy()}) for batch in batches]
    probabilities, p_values, _ = map(np.concatenate, zip(*found, strict=True))
    result = Verification(
        images=len(inputs),
        adapters=len(expected.adapters.unique()),
        difference=float(np.abs(probabilities - expected.probabilities.numpy()).max()),
        p_value_difference=float(np.abs(p_values - expected.novelty.numpy()).max()),
    )
    for what, difference, allowed in (
        ("probabilities", result.difference, TOLERANCE),
        ("p-values", result.p_value_difference, TOLERANCE + p_value_step),
    ):
        if not difference <= allowed:  # NaN, too
            raise RememberingError(
                f"the {what} of the exported model differ by {difference:.2g} from those of the "
                f"model, more than {allowed:.2g}; nothing was written. Other versions of torch, "
                "onnxscript or onnxruntime may help"
            )
    return result


def _session(onnx: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])


def _spread(images: ImageSequence, most: int) -> Tensor:
    """Return at most so many positions, evenly spaced."""
    return torch.linspace(0, len(images) - 1, max(1, min(most, len(images)))).long()


def _patterns(channels: int, size: int) -> Tensor:
    """Return noise at several scales, from gradients to single pixels."""
    rng = torch.Generator().manual_seed(0)
    sides = [min(size, 2 ** (1 + i % 5)) for i in range(PATTERNS)]
    noise = [torch.rand(1, channels, side, side, generator=rng) for side in sides]
    scaled = [F.interpolate(part, (size, size), mode="bilinear") for part in noise]
    return (255 * torch.cat(scaled)).round().to(torch.uint8)


def _without_resizing(backbone: Backbone) -> Backbone:
    """Return the same backbone for images that are prepared already."""
    same = copy.copy(backbone)
    same.preprocessing = replace(backbone.preprocessing, edge=None, keeps_ratio=False)
    return same
