"""Permutation streams: the same images in every task, with the pixels in another order."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.data.images import Subset
from remembering.data.sources.base import LabelledImages, Source
from remembering.data.streams.stream import Stream, TaskData, as_task
from remembering.errors import RememberingError
from remembering.runtime.seeding import permutation


class PermutedImages(Subset):
    """Some images in a given order, their pixels moved when they are asked for.

    Fifty tasks share the pixels of one data set instead of holding fifty copies. The channels of
    a pixel stay together.
    """

    def __init__(self, images: Tensor, index: Tensor, pixels: Tensor):
        super().__init__(images, index)
        self.pixels = pixels

    def __getitem__(self, index: Tensor, /) -> Tensor:
        images = torch.as_tensor(super().__getitem__(index))
        return images.flatten(2)[:, :, self.pixels].reshape(images.shape)


def permute(source: Source, tasks: int, seed: int) -> Stream:
    """One random order of the pixels per task, the same for its train and test images.

    Every task has all classes under the same labels. Every task is permuted, the first too.
    """
    if tasks < 1:
        raise RememberingError(f"a stream of {tasks} permutations is asked for; give 1 or more")
    train, test = _tensors(source)
    names = [f"permutation {i + 1}" for i in range(tasks)]
    stream: list[TaskData] = []
    for i, name in enumerate(names):
        pixels = permutation(train.shape[2] * train.shape[3], seed, "permute", i)
        # Only the order of the test images matters: training mixes them anew in every epoch.
        index = torch.arange(len(train)), permutation(len(test), seed, "permute test", i)
        parts = (
            LabelledImages(PermutedImages(train, index[0], pixels), source.train.labels),
            LabelledImages(PermutedImages(test, index[1], pixels), source.test.labels[index[1]]),
        )
        stream.append(TaskData(*(as_task(name, part, source.classes) for part in parts)))
    return Stream(f"{source.name} in {tasks} permutations", tuple(stream))


def _tensors(source: Source) -> tuple[Tensor, Tensor]:
    train, test = source.train.images, source.test.images
    if not isinstance(train, Tensor) or not isinstance(test, Tensor):
        raise RememberingError(
            f"the images of '{source.name}' are read from files one by one and may differ in size; "
            "permute a data set of images of one size, such as mnist"
        )
    if train.shape[1:] != test.shape[1:]:
        raise RememberingError(
            f"the train images of '{source.name}' are {tuple(train.shape[1:])} but its test images "
            f"{tuple(test.shape[1:])}; a permutation needs one size"
        )
    return train, test
