"""Problem documents (RFC 9457): every error response has the same shape."""

from __future__ import annotations

import http
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from remembering.errors import RememberingError, StorageError

MEDIA_TYPE = "application/problem+json"


class ProblemError(RememberingError):
    """A request that cannot be answered.

    Args:
        status: HTTP status code.
        detail: What is wrong, and what to do.
        headers: Additional response headers.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None):
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})


def busy(detail: str, seconds: int = 1) -> ProblemError:
    """Return the problem of a full queue; the client should retry after some seconds."""
    return ProblemError(503, detail, {"Retry-After": str(seconds)})


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem document as a response."""
    content = {
        "type": "about:blank",
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    # Escaped as ASCII: an error may quote text that UTF-8 cannot encode.
    body = json.dumps(content).encode()
    return Response(body, status, dict(headers or {}), MEDIA_TYPE)


def validation_detail(errors: Sequence[Any]) -> str:
    """Return the first problem that pydantic found, as a sentence."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where or 'the request'}: {first['msg']}{more}"


def install(app: FastAPI) -> None:
    """Answer the exceptions of requests with problem documents; `Guard` answers all others."""

    @app.exception_handler(ProblemError)
    async def _problem(request: Request, error: ProblemError) -> Response:
        return problem(error.status, str(error), error.headers)

    @app.exception_handler(StorageError)
    async def _storage(request: Request, error: StorageError) -> Response:
        return problem(503, str(error), {"Retry-After": "5"})

    @app.exception_handler(RememberingError)
    async def _library(request: Request, error: RememberingError) -> Response:
        return problem(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def _request(request: Request, error: RequestValidationError) -> Response:
        return problem(422, validation_detail(error.errors()))

    @app.exception_handler(ValidationError)
    async def _validation(request: Request, error: ValidationError) -> Response:
        return problem(422, validation_detail(error.errors()))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), error.headers)
