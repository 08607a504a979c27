"""Shapes of responses and of bodies that have several content types, for the documentation."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from remembering.serving.inputs import AddBody, LearnBody, ObserveBody, PredictBody
from remembering.serving.problems import MEDIA_TYPE

Label = str | int
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


class Health(BaseModel):
    """Answer of a check."""

    status: Literal["ok"] = "ok"


class Nothing(BaseModel):
    """A JSON body without content."""

    model_config = ConfigDict(extra="forbid")


class Version(BaseModel):
    """Version of the model after a change."""

    version: int


class Ranked(BaseModel):
    """A label and its probability."""

    label: Label
    probability: float


class Familiarity(BaseModel):
    """How familiar an image is to a task, compared with the other tasks."""

    name: str
    probability: float


class Prediction(BaseModel):
    """Answer to one image."""

    label: Label
    probability: float
    top: list[Ranked]
    task: str
    adapter: int
    tasks: list[Familiarity]
    p_value: float | None
    unknown: bool | None


class Predictions(BaseModel):
    """Answers to all images of a request."""

    version: int
    predictions: list[Prediction]


class Job(BaseModel):
    """A long operation."""

    id: str
    kind: Literal["learn", "add", "observe", "flush"]
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    task: str | None
    progress: float
    message: str
    seconds_left: float | None
    error: str | None
    version: int | None
    result: dict[str, Any]


class Accepted(BaseModel):
    """A job that is stored and will be run."""

    job: Job


class Jobs(BaseModel):
    """All jobs."""

    jobs: list[Job]


class Point(BaseModel):
    """Accuracy of a version on held-out images."""

    version: int
    accuracy: float | None


class Task(BaseModel):
    """A learned task."""

    name: str
    classes: list[Label]
    images: int
    adapter: int
    held_out: int
    accuracy: list[Point]


class Adapter(BaseModel):
    """An adapter and the tasks that it serves."""

    number: int
    tasks: list[str]


class Backbone(BaseModel):
    """The frozen backbone."""

    name: str
    image_size: int


class Footprint(BaseModel):
    """What is kept besides the frozen backbone."""

    adapters: int
    heads: int
    routers: int
    replay_bytes: int
    bytes: int


class Model(BaseModel):
    """A version of the model."""

    version: int
    name: str
    backbone: Backbone
    tasks: list[Task]
    adapters: list[Adapter]
    classes: list[Label]
    footprint: Footprint
    capacity: int | None
    can_undo: bool
    can_add: bool
    read_only: bool
    token_required: bool
    pending: int


class ForgottenTask(BaseModel):
    """A task that was removed."""

    name: str
    shared_with: list[str]
    replay_images: int


class Forgotten(Version):
    """Version after a task was removed."""

    forgotten: ForgottenTask


class SampleSet(BaseModel):
    """A built-in set of images."""

    name: str
    labels: list[str]


class SampleSets(BaseModel):
    """All built-in sets."""

    sets: list[SampleSet]


class SampleImages(BaseModel):
    """Images as data URLs."""

    images: list[str]


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


def _problem(description: str) -> dict[str, Any]:
    schema = Problem.model_json_schema()
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: _problem("The request is malformed."),
    401: _problem("A valid token is required."),
    403: _problem("The request may come from another web page."),
    404: _problem("There is no such thing."),
    408: _problem("The body did not arrive in time."),
    409: _problem("The model is not in a state that allows this."),
    413: _problem("A limit is exceeded."),
    415: _problem("The content type is not supported."),
    421: _problem("The host name is not served."),
    422: _problem("A value is not acceptable."),
    503: _problem("A queue is full; Retry-After says when to retry."),
}


def _body(kind: type[BaseModel], example: dict[str, Any], form: dict[str, Any] | None) -> Any:
    content = {"application/json": {"schema": kind.model_json_schema(), "example": example}}
    if form:
        content["multipart/form-data"] = {"schema": form}
    return {"requestBody": {"required": True, "content": content}}


_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
PREDICT_BODY = _body(
    PredictBody,
    {"images": [_PIXEL], "top_k": 3, "false_alarm_rate": 0.05},
    {
        "type": "object",
        "properties": {
            "images": _FILES,
            "top_k": {"type": "integer", "minimum": 1, "default": 1},
            "false_alarm_rate": {"type": "number"},
            "groups": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["images"],
    },
)
LEARN_BODY = _body(
    LearnBody,
    {"name": "pets", "classes": {"cat": [_PIXEL, _PIXEL], "dog": [_PIXEL, _PIXEL]}},
    {
        "type": "object",
        "description": "Files of class LABEL are sent in the field class:LABEL.",
        "properties": {"name": {"type": "string"}},
        "additionalProperties": _FILES,
        "required": ["name"],
    },
)
ADD_BODY = _body(AddBody, {"classes": {"hamster": [_PIXEL, _PIXEL]}}, None)
OBSERVE_BODY = _body(ObserveBody, {"images": [_PIXEL], "labels": ["cat"]}, None)
