"""From request bodies to checked values: names, labels and images."""

from __future__ import annotations

import base64
import binascii
import contextlib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from torch import Tensor

from remembering.data.decoding import decode_image
from remembering.data.images import ImageBatch, LazyImages
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.serving.options import Limits
from remembering.serving.problems import ProblemError, validation_detail

CLASS_FIELD = "class:"
_INLINE_BYTES, _INLINE_PIXELS = 64 * 1024, 1_000_000  # more would delay other requests
_DECODERS = 2  # large requests that are decoded at the same time
B = TypeVar("B", bound="Body")
T = TypeVar("T")


class Body(BaseModel):
    """A JSON request body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PredictBody(Body):
    """Body of `POST /v1/predict`."""

    images: list[str] = Field(min_length=1, description="Base64 or data URLs.")
    top_k: int = Field(1, ge=1, le=1000)
    false_alarm_rate: float | None = Field(None, gt=0, lt=1)
    groups: list[str | int] | None = None


class LearnBody(Body):
    """Body of `POST /v1/learn`."""

    name: str
    classes: dict[str, list[str]] = Field(description="Base64 images or data URLs by label.")


class AddBody(Body):
    """Body of `POST /v1/tasks/{name}/classes`."""

    classes: dict[str, list[str]] = Field(description="Base64 images or data URLs by label.")


class ObserveBody(Body):
    """Body of `POST /v1/observe`."""

    images: list[str] = Field(min_length=1, description="Base64 or data URLs.")
    labels: list[str | int]


class FlushBody(Body):
    """Body of `POST /v1/flush`."""

    discard: bool = False


class RenameTaskBody(Body):
    """Body of `POST /v1/tasks/{name}/rename`."""

    name: str


class RenameClassBody(Body):
    """Body of `POST /v1/classes/rename`."""

    task: str
    label: str | int
    new_label: str | int


@dataclass(frozen=True, eq=False)
class Query:
    """A prediction to make."""

    images: list[Tensor]
    top_k: int = 1
    false_alarm_rate: float | None = None
    groups: list[str | int] | None = None


@dataclass(frozen=True, eq=False)
class LabelledBytes:
    """Encoded images with a label each."""

    images: tuple[bytes, ...]
    labels: tuple[Label, ...]


class EncodedImages(LazyImages):
    """Encoded images, decoded on access."""

    def __init__(self, images: Sequence[bytes]):
        self.images = list(images)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor, /) -> ImageBatch:
        return ImageBatch(
            [partial(decode_image, self.images[i], f"image {i}") for i in index.tolist()]
        )


class Reader:
    """Reads request bodies. Large ones are decoded in a few threads, which bounds the memory."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._slots = anyio.CapacityLimiter(_DECODERS)

    async def query(self, request: Request) -> Query:
        """Read the body of a prediction, as JSON or as a form."""
        limits = self.limits
        if not _is_form(request):
            body = await request.body()
            return await self._decoded(len(body), partial(_query, body))
        known = {"images", "top_k", "false_alarm_rate", "groups"}
        async with request.form(max_files=limits.images, max_fields=limits.images + 8) as form:
            _check_fields(form, known)
            images = await _uploads(form, "images", limits)
            values = {
                "images": ["uploaded"] * len(images),
                "top_k": form.get("top_k", "1"),
                "false_alarm_rate": form.get("false_alarm_rate"),
                "groups": form.getlist("groups") or None,
            }
        options = _validate(PredictBody, values)
        size = sum(map(len, images))
        decoded = await self._decoded(size, partial(_decode_all, images))
        return _checked_query(options, decoded)

    async def task(self, request: Request) -> tuple[str, LabelledBytes]:
        """Read the body of `POST /v1/learn`: the name of a task, and its labelled images."""
        limits = self.limits
        if not _is_form(request):
            body = await request.body()
            return await self._in_thread(partial(_task, body, limits))
        async with request.form(max_files=limits.task_images, max_fields=8) as form:
            fields = dict.fromkeys(key for key, _ in form.multi_items() if key != "name")
            _check_fields(form, {"name", *(key for key in fields if key.startswith(CLASS_FIELD))})
            name = form.get("name", "")
            classes = {
                key.removeprefix(CLASS_FIELD): await _uploads(form, key, limits) for key in fields
            }
        if not isinstance(name, str):
            raise ProblemError(422, "the name of the task was sent as a file")
        return await self._in_thread(partial(_checked_task, name, classes, limits))

    async def addition(self, request: Request) -> LabelledBytes:
        """Read the body of `POST /v1/tasks/{name}/classes`."""
        body = await request.body()
        return await self._in_thread(partial(_addition, body, self.limits))

    async def observation(self, request: Request) -> LabelledBytes:
        """Read the body of `POST /v1/observe`."""
        body = await request.body()
        return await self._in_thread(partial(_observation, body, self.limits))

    async def _decoded(self, size: int, function: Callable[[Limits], T]) -> T:
        """Decode the images of a prediction: a few small ones at once, others in a thread.

        A few bytes may encode many pixels, which would hold up all other requests.
        """
        if size <= _INLINE_BYTES:
            small = replace(
                self.limits,
                image_pixels=min(self.limits.image_pixels, _INLINE_PIXELS),
                request_pixels=min(self.limits.request_pixels, _INLINE_PIXELS),
            )
            with contextlib.suppress(ProblemError):  # the thread reports what is wrong
                return function(small)
        return await self._in_thread(partial(function, self.limits))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=self._slots)


def checked_text(text: str, what: str, limits: Limits) -> str:
    """Return a name or label without surrounding spaces.

    Raises:
        ProblemError: If it is empty, too long, or has control characters.
    """
    text = text.strip()
    if not text:
        raise ProblemError(422, f"{what} is empty")
    if len(text) > limits.text_length:
        raise ProblemError(422, f"{what} has more than {limits.text_length} characters")
    # Lone surrogates have no UTF-8 encoding, and control characters no visible form.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ProblemError(422, f"{what} has control characters")
    return text


def checked_label(label: Label, limits: Limits) -> Label:
    """Return a label without surrounding spaces; integers must fit into 64 bits."""
    if isinstance(label, str):
        return checked_text(label, "a label", limits)
    if not -(2**63) <= label < 2**63:
        raise ProblemError(422, "a label is an integer of more than 64 bits")
    return label


def _query(body: bytes, limits: Limits) -> Query:
    query = _parse(PredictBody, body)
    return _checked_query(query, _decode_all(_base64_images(query.images, limits.images), limits))


def _checked_query(body: PredictBody, images: list[Tensor]) -> Query:
    if body.groups is not None and len(body.groups) != len(images):
        raise ProblemError(
            422,
            f"{len(body.groups)} groups are given for {len(images)} images; give one group per "
            "image",
        )
    return Query(images, body.top_k, body.false_alarm_rate, body.groups)


def _task(body: bytes, limits: Limits) -> tuple[str, LabelledBytes]:
    request = _parse(LearnBody, body)
    return _checked_task(request.name, _base64_classes(request.classes, limits), limits)


def _addition(body: bytes, limits: Limits) -> LabelledBytes:
    request = _parse(AddBody, body)
    batch = _checked_classes(_base64_classes(request.classes, limits), limits)
    if not batch.images:
        raise ProblemError(422, "there is no image to add; give at least one")
    return batch


def _base64_classes(classes: dict[str, list[str]], limits: Limits) -> dict[str, list[bytes]]:
    texts = [text for images in classes.values() for text in images]
    images = iter(_base64_images(texts, limits.task_images))
    return {label: [next(images) for _ in members] for label, members in classes.items()}


def _checked_task(
    name: str, classes: dict[str, list[bytes]], limits: Limits
) -> tuple[str, LabelledBytes]:
    return checked_text(name, "the name of the task", limits), _checked_classes(classes, limits)


def _checked_classes(classes: dict[str, list[bytes]], limits: Limits) -> LabelledBytes:
    labels = [checked_text(label, "a label", limits) for label in classes]
    if len({*labels}) < len(labels):
        raise ProblemError(422, "two labels differ only in surrounding spaces")
    if len(labels) > limits.classes:
        raise ProblemError(
            413, f"{len(labels)} classes are too many; give at most {limits.classes}"
        )
    task = LabelledBytes(
        tuple(image for images in classes.values() for image in images),
        tuple(
            label for label, images in zip(labels, classes.values(), strict=True) for _ in images
        ),
    )
    _check_images(task, limits)
    return task


def _observation(body: bytes, limits: Limits) -> LabelledBytes:
    request = _parse(ObserveBody, body)
    if len(request.images) != len(request.labels):
        raise ProblemError(
            422,
            f"there are {len(request.images)} images but {len(request.labels)} labels; give one "
            "label per image",
        )
    labels = tuple(checked_label(label, limits) for label in request.labels)
    if len({type(label) for label in labels}) > 1:
        raise ProblemError(422, "labels are strings and integers; use one type")
    batch = LabelledBytes(tuple(_base64_images(request.images, limits.images)), labels)
    _check_images(batch, limits)
    return batch


def _check_images(task: LabelledBytes, limits: Limits) -> None:
    """Decode every image once, so that no job fails because of an image."""
    pixels = 0
    for i, image in enumerate(task.images):
        decoded = _decode(image, f"image {i} of class '{task.labels[i]}'", limits)
        pixels += _pixels(decoded)
        _check_pixels(pixels, limits.task_pixels)


def _decode_all(images: Sequence[bytes], limits: Limits) -> list[Tensor]:
    pixels, decoded = 0, []
    for i, image in enumerate(images):
        tensor = _decode(image, f"image {i}", limits)
        pixels += _pixels(tensor)
        _check_pixels(pixels, limits.request_pixels)
        decoded.append(tensor)
    return decoded


def _pixels(image: Tensor) -> int:
    return image.shape[-1] * image.shape[-2]


def _check_pixels(pixels: int, limit: int) -> None:
    if pixels > limit:
        raise ProblemError(413, f"the images have more than {limit:,} pixels; send fewer")


def _decode(image: bytes, where: str, limits: Limits) -> Tensor:
    if len(image) > limits.image_bytes:
        raise ProblemError(413, f"{where} has more than {limits.image_bytes:,} bytes")
    try:
        return decode_image(image, where, max_pixels=limits.image_pixels)
    except RememberingError as error:
        raise ProblemError(422, str(error)) from error


def _base64_images(texts: Sequence[str], limit: int) -> list[bytes]:
    _check_count(len(texts), limit)
    images = []
    for i, text in enumerate(texts):
        data = text
        if text.startswith("data:"):
            header, _, data = text.partition(",")
            if not header.endswith(";base64"):
                raise ProblemError(422, f"image {i} is not a base64 data URL")
        try:
            images.append(base64.b64decode(data, validate=True))
        except (binascii.Error, ValueError) as error:
            raise ProblemError(422, f"image {i} is not base64 ({error})") from error
    return images


def _check_count(count: int, limit: int) -> None:
    if count > limit:
        raise ProblemError(413, f"{count} images are too many; send at most {limit}")


async def _uploads(form: FormData, field: str, limits: Limits) -> list[bytes]:
    images = []
    for value in form.getlist(field):
        if not isinstance(value, UploadFile):
            raise ProblemError(422, f"'{field}' is not a file; send images as files")
        images.append(await value.read(limits.image_bytes + 1))
    return images


def _check_fields(form: FormData, known: set[str]) -> None:
    unknown = sorted({*form} - known)
    if unknown:
        raise ProblemError(422, f"there is no field '{unknown[0]}'")


def _is_form(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return True
    if kind != "application/json":
        raise ProblemError(415, "send application/json or multipart/form-data")
    return False


def _parse(kind: type[B], body: bytes) -> B:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise ProblemError(422, validation_detail(error.errors())) from error


def _validate(kind: type[B], values: Mapping[str, object]) -> B:
    """Check the fields of a form, which are all text."""
    try:
        return kind.model_validate(values, strict=False)
    except ValidationError as error:
        raise ProblemError(422, validation_detail(error.errors())) from error
