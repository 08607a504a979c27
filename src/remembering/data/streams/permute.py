"""Permutation streams: every task has the same images, with the pixels in another order."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.data.images import Subset
from remembering.data.sources.base import LabelledImages, Source
from remembering.data.streams.stream import Stream, TaskData, as_task
from remembering.errors import InvalidInputError
from remembering.runtime.seeding import permutation


class PermutedImages(Subset):
    """Images whose pixels are permuted on access; the channels of a pixel stay together.

    All tasks of a stream share the pixels of one data set.
    """

    def __init__(self, images: Tensor, index: Tensor, pixels: Tensor):
        super().__init__(images, index)
        self.pixels = pixels

    def __getitem__(self, index: Tensor, /) -> Tensor:
        images = torch.as_tensor(super().__getitem__(index))
        return images.flatten(2)[:, :, self.pixels].reshape(images.shape)


def permute(source: Source, tasks: int, seed: int) -> Stream:
    """Create tasks that differ in one random permutation of the pixels each.

    A task uses the same permutation for training and test images. Every task has all classes,
    under the same labels; the first task is permuted, too.

    Args:
        source: A data set of images of one size.
        tasks: The number of tasks.
        seed: Determines the permutations and the order of the test images.

    Raises:
        InvalidInputError: If there are no tasks, or image sizes may differ.
    """
    if tasks < 1:
        raise InvalidInputError(f"the number of permutation tasks is {tasks}; use 1 or more")
    train, test = _tensors(source)
    names = [f"permutation {i + 1}" for i in range(tasks)]
    stream: list[TaskData] = []
    for i, name in enumerate(names):
        pixels = permutation(train.shape[2] * train.shape[3], seed, "permute", i)
        # Training shuffles in every epoch, so only the order of the test images matters.
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
        raise InvalidInputError(
            f"the images of '{source.name}' are decoded one by one and may differ in size; "
            "permute a data set of images of one size, such as mnist"
        )
    if train.shape[1:] != test.shape[1:]:
        raise InvalidInputError(
            f"the training images of '{source.name}' have the shape {tuple(train.shape[1:])} but "
            f"its test images {tuple(test.shape[1:])}; a permutation needs one size"
        )
    return train, test
