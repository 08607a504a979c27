"""The HTTP interface: routes of the service, browser UI and documentation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, FastAPI, Query, Request
from starlette.middleware import Middleware
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from remembering.runtime.text import printable
from remembering.serving import metrics, problems, schemas
from remembering.serving.documentation import STYLE, render
from remembering.serving.inputs import (
    FlushBody,
    Reader,
    RenameClassBody,
    RenameTaskBody,
    checked_label,
    checked_text,
)
from remembering.serving.problems import ProblemError, busy
from remembering.serving.samples import MAX_COUNT, SETS, samples
from remembering.serving.security import Guard
from remembering.serving.service import Service

STATIC = Path(__file__).parent / "static"
_EVENT_SECONDS = 0.5
_DESCRIPTION = (
    "Teach a pretrained Transformer one task after another, without forgetting. Predictions choose "
    "the task by content. Every answer names the version of the model it came from."
)


def create_app(service: Service) -> FastAPI:
    """Return the application of a service; it closes the service when it shuts down."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.close)

    guard = Middleware(Guard, options=service.options, metrics=service.metrics)
    app = FastAPI(
        title="Remembering",
        description=_DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=[guard],
        responses=schemas.PROBLEMS,
    )
    problems.install(app)
    app.include_router(_predictions(service))  # first: routes are tried in this order
    app.include_router(_pages(app))
    app.include_router(_monitoring(service))
    app.include_router(_learning(service))
    app.include_router(_edits(service))
    if STATIC.is_dir():
        app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _pages(app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def ui() -> Response:
        page = STATIC / "index.html"
        if not page.is_file():
            raise ProblemError(404, "the browser UI is not installed; see /docs for the interface")
        return FileResponse(page, headers={"Cache-Control": "no-cache"})

    @router.get("/docs")
    async def docs() -> Response:
        return Response(render(app.openapi()), media_type="text/html")

    @router.get("/docs.css")
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    return router


def _monitoring(service: Service) -> APIRouter:
    router = APIRouter(tags=["monitoring"])

    @router.get("/healthz", summary="Whether the process answers")
    async def healthz() -> schemas.Health:
        return schemas.Health()

    @router.get("/readyz", summary="Whether requests can be answered")
    async def readyz() -> schemas.Health:
        if not service.is_ready:
            raise busy("the server is not ready")
        return schemas.Health()

    @router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def prometheus() -> Response:
        text = service.metrics.text(service.gauges())
        return Response(text, media_type=metrics.MEDIA_TYPE)

    return router


class _AsciiResponse(JSONResponse):
    """JSON with escapes: names from folders that are not UTF-8 have no other form."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class _TemporaryFileResponse(FileResponse):
    """A file that is removed afterwards, even if it is not sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # a background task would not run after a request for a wrong range
            Path(self.path).unlink(missing_ok=True)


@contextmanager
def _refuse_undecodable() -> Iterator[None]:
    """Refuse forms whose text cannot be decoded with the charset that they name."""
    try:
        yield
    except UnicodeError as error:
        raise ProblemError(400, "the form is not in its charset; send UTF-8") from error


def _predictions(service: Service) -> APIRouter:
    router = APIRouter(tags=["predictions"])
    reader = Reader(service.options.limits)
    streams = 0

    @router.post(
        "/v1/predict",
        summary="Classify images whose task is unknown",
        response_model=schemas.Predictions,
        openapi_extra=schemas.PREDICT_BODY,
    )
    async def predict(request: Request) -> Response:
        with _refuse_undecodable():
            query = await reader.query(request)
        return _AsciiResponse(await asyncio.wrap_future(service.predict(query)))

    @router.get(
        "/v1/model",
        summary="Tasks, classes, adapters and footprint",
        response_model=schemas.Model,
    )
    async def model() -> Response:
        return _AsciiResponse(service.model())

    @router.get("/v1/samples", summary="Built-in sets of images")
    async def sample_sets() -> schemas.SampleSets:
        sets = [schemas.SampleSet(name=name, labels=list(labels)) for name, labels in SETS.items()]
        return schemas.SampleSets(sets=sets)

    @router.get("/v1/samples/{name}/{label}", summary="Built-in images of a label")
    async def sample_images(
        name: str, label: str, count: Annotated[int, Query(ge=1, le=MAX_COUNT)] = 20
    ) -> schemas.SampleImages:
        images = await anyio.to_thread.run_sync(samples, name, label, count)
        return schemas.SampleImages(images=images)

    @router.get("/v1/events", summary="Changes as server-sent events", response_class=Response)
    async def events() -> Response:
        nonlocal streams
        if streams >= service.options.limits.event_streams:
            raise busy("too many event streams are open; poll instead", 10)

        async def stream() -> AsyncIterator[str]:
            nonlocal streams
            streams += 1
            seen: dict[str, str] = {}
            try:
                while not service.stopping:
                    for name, value in _events(service):
                        data = json.dumps(value)
                        if seen.get(f"{name} {value.get('id')}") != data:
                            seen[f"{name} {value.get('id')}"] = data
                            yield f"event: {name}\ndata: {data}\n\n"
                    await asyncio.sleep(_EVENT_SECONDS)
            finally:
                streams -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    @router.get("/v1/model/download", summary="The model as a zip file", response_class=Response)
    async def download() -> Response:
        path = await anyio.to_thread.run_sync(service.archive)
        name = printable(service.options.folder.resolve().name)
        return _TemporaryFileResponse(path, media_type="application/zip", filename=f"{name}.zip")

    return router


def _events(service: Service) -> list[tuple[str, dict[str, Any]]]:
    jobs = [("job", job.public()) for job in service.jobs.all()]
    return [*jobs, ("model", {"version": service.served.version})]


def _learning(service: Service) -> APIRouter:
    router = APIRouter(tags=["learning"])
    reader = Reader(service.options.limits)

    def accepted(job: Any) -> Response:
        headers = {"Location": f"/v1/jobs/{job.id}"}
        return _AsciiResponse({"job": job.public()}, 202, headers)

    @router.post(
        "/v1/learn",
        summary="Learn labelled images as one task",
        status_code=202,
        response_model=schemas.Accepted,
        openapi_extra=schemas.LEARN_BODY,
    )
    async def learn(request: Request) -> Response:
        service.learner.check_writer()
        service.jobs.check_free()  # before the body is read
        with _refuse_undecodable():
            name, batch = await reader.task(request)
        return accepted(await anyio.to_thread.run_sync(service.learn, name, batch))

    @router.post(
        "/v1/tasks/{name:path}/classes",
        summary="Add classes, or images of its classes, to a task",
        status_code=202,
        response_model=schemas.Accepted,
        openapi_extra=schemas.ADD_BODY,
    )
    async def add(name: str, request: Request) -> Response:
        service.learner.check_writer()
        service.jobs.check_free()
        batch = await reader.addition(request)
        return accepted(await anyio.to_thread.run_sync(service.add, name, batch))

    @router.post(
        "/v1/observe",
        summary="Observe labelled images of a stream without task boundaries",
        status_code=202,
        response_model=schemas.Accepted,
        openapi_extra=schemas.OBSERVE_BODY,
    )
    async def observe(request: Request) -> Response:
        service.learner.check_writer()
        service.jobs.check_free()
        batch = await reader.observation(request)
        return accepted(await anyio.to_thread.run_sync(service.observe, batch))

    @router.post(
        "/v1/flush",
        summary="Learn the observed images that wait",
        status_code=202,
        response_model=schemas.Accepted,
    )
    async def flush(body: FlushBody) -> Response:
        return accepted(await anyio.to_thread.run_sync(service.flush, body.discard))

    @router.get("/v1/jobs", summary="All jobs, oldest first", response_model=schemas.Jobs)
    async def jobs() -> Response:
        return _AsciiResponse({"jobs": [job.public() for job in service.jobs.all()]})

    @router.get("/v1/jobs/{job_id}", summary="Progress of a job", response_model=schemas.Job)
    async def job(job_id: str) -> Response:
        return _AsciiResponse(service.jobs.get(job_id).public())

    @router.delete("/v1/jobs/{job_id}", summary="Cancel a job", response_model=schemas.Job)
    async def cancel(job_id: str) -> Response:
        job = await anyio.to_thread.run_sync(service.jobs.cancel, job_id)
        return _AsciiResponse(job.public())

    return router


def _edits(service: Service) -> APIRouter:
    router = APIRouter(tags=["changes"])
    limits = service.options.limits

    @router.delete(
        "/v1/tasks/{name:path}", summary="Forget a task", response_model=schemas.Forgotten
    )
    async def forget(name: str) -> Response:
        version, forgotten = await asyncio.wrap_future(service.forget(name))
        summary = {
            "name": forgotten.task.name,
            "shared_with": forgotten.shared_with,
            "replay_images": forgotten.replay_images,
        }
        return _AsciiResponse({"version": version, "forgotten": summary})

    @router.post("/v1/tasks/{name:path}/rename", summary="Rename a task")
    async def rename_task(name: str, body: RenameTaskBody) -> schemas.Version:
        new_name = checked_text(body.name, "the new name", limits)
        version, _ = await asyncio.wrap_future(service.rename_task(name, new_name))
        return schemas.Version(version=version)

    @router.post("/v1/classes/rename", summary="Rename a class of a task")
    async def rename_class(body: RenameClassBody) -> schemas.Version:
        new_label = checked_label(body.new_label, limits)
        version, _ = await asyncio.wrap_future(
            service.rename_class(body.task, body.label, new_label)
        )
        return schemas.Version(version=version)

    @router.post("/v1/undo", summary="Return to the state before the last change")
    async def undo(body: schemas.Nothing | None = None) -> schemas.Version:
        version, _ = await asyncio.wrap_future(service.undo())
        return schemas.Version(version=version)

    return router
