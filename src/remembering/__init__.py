"""Teach a frozen pretrained Transformer one task after another, without forgetting.

>>> from remembering import RememberingTransformer, Task
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remembering.backbones.backbone import Backbone
    from remembering.config import ClassifierSettings, FusionSettings, RouterSettings, Settings
    from remembering.data.arrays import denormalise
    from remembering.data.images import ImagesLike
    from remembering.data.paths import load_tasks
    from remembering.data.task import Label, LabelsLike, Task
    from remembering.errors import RememberingError
    from remembering.evaluation.quality import Evaluation
    from remembering.export.onnx_file import Exported
    from remembering.inference.prediction import Answer, Neighbor, Prediction
    from remembering.learner import Footprint
    from remembering.learning.checkpoint import Checkpoint
    from remembering.learning.consolidate import Consolidated
    from remembering.learning.forget import Forgotten
    from remembering.learning.held_out import HeldOut
    from remembering.learning.learned import Learned
    from remembering.learning.observe import Observed
    from remembering.model import RememberingTransformer
    from remembering.runtime.progress import Progress
    from remembering.state import ModelState, TaskRecord

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "Backbone",
    "Checkpoint",
    "ClassifierSettings",
    "Consolidated",
    "Evaluation",
    "Exported",
    "Footprint",
    "Forgotten",
    "FusionSettings",
    "HeldOut",
    "ImagesLike",
    "Label",
    "LabelsLike",
    "Learned",
    "ModelState",
    "Neighbor",
    "Observed",
    "Prediction",
    "Progress",
    "RememberingError",
    "RememberingTransformer",
    "RouterSettings",
    "Settings",
    "Task",
    "TaskRecord",
    "denormalise",
    "load_tasks",
]

# Applications decide what is shown; `remember` shows everything.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# Imported on first use: torch and transformers take seconds, which `remember --help` must not.
_HOMES = {
    "Answer": "inference.prediction",
    "Backbone": "backbones.backbone",
    "Checkpoint": "learning.checkpoint",
    "ClassifierSettings": "config",
    "Consolidated": "learning.consolidate",
    "Evaluation": "evaluation.quality",
    "Exported": "export.onnx_file",
    "Footprint": "learner",
    "Forgotten": "learning.forget",
    "FusionSettings": "config",
    "HeldOut": "learning.held_out",
    "ImagesLike": "data.images",
    "Label": "data.task",
    "LabelsLike": "data.task",
    "Learned": "learning.learned",
    "ModelState": "state",
    "Neighbor": "inference.prediction",
    "Observed": "learning.observe",
    "Prediction": "inference.prediction",
    "Progress": "runtime.progress",
    "RememberingError": "errors",
    "RememberingTransformer": "model",
    "RouterSettings": "config",
    "Settings": "config",
    "Task": "data.task",
    "TaskRecord": "state",
    "denormalise": "data.arrays",
    "load_tasks": "data.paths",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'remembering' has no attribute '{name}'")
    return getattr(importlib.import_module(f"remembering.{_HOMES[name]}"), name)
