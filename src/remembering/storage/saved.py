"""What is known about the saves of a model while it is in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from remembering.storage.artifacts import Artifact


@dataclass(frozen=True)
class SavedModel:
    """Identity of a model and its last load or save.

    Attributes:
        model_id: Identifies the model; empty before the first save.
        generation: Number of saves so far.
        artifacts: Artifacts that are encoded and hashed already, by key.
        ancestors: SHA-256 of the manifests that the state descends from, which a save may replace.
            A save adds its own before it writes it, so that it can be repeated after an interrupt.
        incomplete: SHA-256 of the manifest from which damaged tasks were left out, if any were.
    """

    model_id: str = ""
    generation: int = 0
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    ancestors: set[str] = field(default_factory=set)
    incomplete: str | None = None

    def copy(self) -> SavedModel:
        """Return the same for another model object, whose saves are its own."""
        return replace(self, ancestors={*self.ancestors})
