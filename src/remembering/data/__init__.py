"""Data: tasks, image decoding, augmentation, task streams, and the sources of known data sets.

Everything that turns files, arrays or datasets into uint8 images with labels belongs here.
Preprocessing for a particular checkpoint does not; it is part of `remembering.backbones`.
"""

from remembering.data.images import ImageLike, ImagesLike
from remembering.data.task import Label, LabelsLike, Task

__all__ = ["ImageLike", "ImagesLike", "Label", "LabelsLike", "Task"]
