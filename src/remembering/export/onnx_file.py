"""Write the complete answer path of a model as an ONNX file, and verify it."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from remembering.backbones.backbone import Backbone
from remembering.data.images import ImagesLike
from remembering.errors import RememberingError, StorageError, reason
from remembering.export.graph import AnswerGraph, Answers, answer_graph
from remembering.export.verify import Verification, verify
from remembering.runtime.files import write_atomic
from remembering.state import ModelState

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MAX_BYTES = 2**31 - 2**20
"""An ONNX file is one message of Protocol Buffers, which is limited to 2 GiB."""
_logger = logging.getLogger("remembering")


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        path: The file.
        bytes: Its size.
        verification: How far its answers are from those of the model.
    """

    path: Path
    bytes: int
    verification: Verification


def export_onnx(
    state: ModelState,
    backbone: Backbone,
    path: Path,
    images: ImagesLike | None = None,
    overwrite: bool = False,
    model_id: str = "",
) -> Exported:
    """Write a model as an ONNX file that runs in onnxruntime.

    Args:
        state: What was learned.
        backbone: The frozen backbone.
        path: The file.
        images: Images to verify the file with. If None, replay images, where the model has some,
            and generated patterns.
        overwrite: Whether to replace an existing file.
        model_id: Identifies the model, for the metadata.

    Raises:
        RememberingError: If the packages are not installed, the file exists, the model has not
            learned a task or cannot be exported, or the answers of the file differ from those of
            the model. Then nothing is written.
    """
    if not state.tasks:
        raise RememberingError("the model has not learned a task yet; call learn first")
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise RememberingError(
            f"the export needs {' and '.join(missing)}; install it with: "
            "pip install 'remembering[onnx]'"
        )
    if path.is_dir():
        raise StorageError(f"{path} is a folder; give the name of a file, such as model.onnx")
    if path.exists() and not overwrite:
        raise StorageError(f"{path} exists; give another file, or pass overwrite=True")
    cpu = torch.device("cpu")
    if backbone.device != cpu:
        state, backbone = state.to(cpu), copy.deepcopy(backbone).to(cpu)
    graph = answer_graph(state, backbone)
    data = _convert(graph, _metadata(state, backbone, model_id))
    step, (channels, *_) = graph.calibration.step, graph.embedding.shape
    verification = verify(data, state, backbone, channels, step, images)
    if verification.adapters < len(state.adapters):
        _logger.warning(
            "the verification reached %d of %d adapters; verify with images of all tasks",
            verification.adapters,
            len(state.adapters),
        )
    write_atomic(path, data)
    return Exported(path, len(data), verification)


def _metadata(state: ModelState, backbone: Backbone, model_id: str) -> dict[str, str]:
    """Return what users of the file need to know besides the graph; lists and objects as JSON."""
    spec = backbone.preprocessing
    return {
        "labels": json.dumps(state.classes),
        "tasks": json.dumps([task.name for task in state.tasks]),
        "image_size": str(spec.size),
        "preprocessing": json.dumps(
            {
                "resize": spec.edge or spec.size,
                "resize_shorter_side": spec.keeps_ratio,
                "interpolation": spec.mode,
                "antialias": spec.mode != "nearest-exact",
                "center_crop": spec.size,
                "mean": spec.mean,
                "std": spec.std,
                "normalisation": "part of the graph, as is the conversion to grey",
                "input": "uint8, RGB, (batch, channels, height, width)",
            }
        ),
        # Only the name of a folder: its location on this machine is private.
        "backbone": Path(backbone.name).name if Path(backbone.name).is_dir() else backbone.name,
        "model_id": model_id,
        "library": "remembering",
        "library_version": version("remembering"),
    }


def _convert(graph: AnswerGraph, metadata: dict[str, str]) -> bytes:
    tensors = {id(t): t for t in (*graph.parameters(), *graph.buffers())}
    size = sum(tensor.nbytes for tensor in tensors.values())
    if size > MAX_BYTES:
        raise RememberingError(
            f"the model has {size:,} bytes of weights, and an ONNX file at most {MAX_BYTES:,}; use "
            "a smaller backbone or fewer classifier.layers"
        )
    images = torch.zeros(3, *graph.embedding.shape, dtype=torch.uint8)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                graph,
                (images,),
                dynamo=True,
                input_names=["images"],
                output_names=Answers._fields,
                dynamic_shapes=({0: "batch"},),
                verbose=False,
            )
    except Exception as error:  # of torch.export, torch.onnx and onnxscript
        cause = error.__cause__ or error  # the exporter wraps it in a page of instructions
        raise RememberingError(
            f"torch {torch.__version__} cannot convert the model to ONNX "
            f"({reason(cause)[:300]}); try another version of torch or onnxscript"
        ) from error
    assert program is not None
    model: Any = program.model_proto
    _strip(model.graph)
    model.producer_name, model.producer_version = "remembering", version("remembering")
    model.ClearField("metadata_props")
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    data: bytes = model.SerializeToString()
    return data


def _strip(graph: Any) -> None:
    """Remove notes of the exporter, which contain paths of this machine, and unused tensors."""
    used = {output.name for output in graph.output}
    for part in _graphs(graph):
        for item in (part, *part.node, *part.input, *part.output, *part.initializer):
            item.ClearField("metadata_props")
        part.ClearField("value_info")
        used |= {name for node in part.node for name in node.input}
        used |= {output.name for output in part.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _graphs(graph: Any) -> Iterator[Any]:
    """Iterate over a graph and its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it warns of packages and calls that do not concern users."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
