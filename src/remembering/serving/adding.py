"""Add images and classes to a learned task."""

from __future__ import annotations

from remembering.backbones.backbone import Backbone
from remembering.learning.editing import add_class, add_images
from remembering.runtime.progress import Progress
from remembering.serving.inputs import EncodedImages, LabelledBytes
from remembering.state import ModelState


def add(
    state: ModelState, backbone: Backbone, name: str, batch: LabelledBytes, progress: Progress
) -> ModelState:
    """Return a state whose task has more images; labels that it lacks become new classes."""
    known = state.task(name).classes
    for label in dict.fromkeys(batch.labels):
        own = EncodedImages(
            [i for i, of in zip(batch.images, batch.labels, strict=True) if of == label]
        )
        with progress.track(f"adding '{label}'", len(own)):
            if label in known:
                state = add_images(state, backbone, name, own, [label] * len(own))
            else:
                state = add_class(state, backbone, name, label, own)
    return state
