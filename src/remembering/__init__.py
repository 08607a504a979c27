"""Teach a frozen pretrained Transformer one task after another, without forgetting.

>>> from remembering import RememberingTransformer, Task
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remembering.backbones.backbone import Backbone
    from remembering.config import RouterSettings, Settings
    from remembering.data.task import Task
    from remembering.errors import RememberingError
    from remembering.inference.prediction import Prediction
    from remembering.model import RememberingTransformer

__version__ = "0.1.0"
__all__ = [
    "Backbone",
    "Prediction",
    "RememberingError",
    "RememberingTransformer",
    "RouterSettings",
    "Settings",
    "Task",
]

# Looked up on first use: torch and transformers take seconds to import, `remember --help` must not.
_HOMES = {
    "Backbone": "backbones.backbone",
    "Prediction": "inference.prediction",
    "RememberingError": "errors",
    "RememberingTransformer": "model",
    "RouterSettings": "config",
    "Settings": "config",
    "Task": "data.task",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'remembering' has no attribute '{name}'")
    return getattr(importlib.import_module(f"remembering.{_HOMES[name]}"), name)
