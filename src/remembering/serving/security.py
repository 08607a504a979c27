"""Checks that every request passes before it reaches a route, and headers of every response."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remembering.serving.metrics import Metrics
from remembering.serving.options import ServeOptions
from remembering.serving.problems import ProblemError, problem

logger = logging.getLogger("remembering.serving")
CSRF_HEADER = "X-Remembering"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_PUBLIC = ("/", "/healthz", "/readyz", "/docs", "/docs.css", "/openapi.json", "/favicon.ico")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = [
    (b"content-security-policy", _CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
]
_NO_STORE = (b"cache-control", b"no-store")


class Guard:
    """ASGI middleware: host, token, origin and body size are checked; headers are added.

    Args:
        app: The application behind it.
        options: Options of the service.
        metrics: Counts the requests.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions, metrics: Metrics):
        self.app, self.options, self.metrics = app, options, metrics
        self._hosts = {*_LOOPBACK_NAMES, *(host.lower() for host in options.allowed_hosts)}
        self._digest = _digest(options.token) if options.token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], *_HEADERS]
                if all(name != _NO_STORE[0] for name, _ in headers):
                    headers.append(_NO_STORE)
                message["headers"] = headers
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, self._limited(receive), send_with_headers)
        except ProblemError as error:
            response = problem(error.status, str(error), error.headers)
            await response(scope, receive, send_with_headers)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if status:  # too late for an error document; the connection is closed
                raise
            response = problem(500, "the server failed to answer; its log names the reason")
            await response(scope, receive, send_with_headers)
        finally:
            path = getattr(scope.get("route"), "path", None) or "other"
            self.metrics.requests.add(1, scope["method"], path, str(status))
            if path == "/v1/predict":
                self.metrics.latency.observe(time.perf_counter() - started)

    def _check(self, scope: Scope) -> None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        self._check_host(headers)
        if self._digest and path not in _PUBLIC and not path.startswith("/static/"):
            self._check_token(headers)
        if method not in _SAFE_METHODS:
            _check_origin(headers)
            if method == "POST" and path != "/v1/predict":
                _check_csrf(headers)
        length = headers.get("content-length", "0")
        limit = self.options.limits.body_bytes
        if not length.isdecimal() or len(length) > 20:
            raise ProblemError(400, "the Content-Length header is not a number")
        if int(length) > limit:
            raise _too_large(limit)

    def _check_host(self, headers: Headers) -> None:
        """Refuse other host names on loopback, so that no web page can rebind its name to us."""
        host = headers.get("host")
        if not host:
            raise ProblemError(400, "the request has no Host header")
        if self.options.is_loopback and _host_name(host) not in self._hosts:
            raise ProblemError(
                421, "this host name is not served; use localhost, or start with --allow-host NAME"
            )

    def _check_token(self, headers: Headers) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Digests have one length, so the comparison takes the same time for every token.
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            _digest(token.strip()), self._digest or b""
        ):
            raise ProblemError(
                401,
                "a valid token is required; send it as Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )

    def _limited(self, receive: Receive) -> Receive:
        limits, received = self.options.limits, 0

        async def limited() -> Message:
            nonlocal received
            if received < 0:  # the whole body has arrived; only a disconnect can follow
                return await receive()
            try:
                async with asyncio.timeout(limits.body_seconds):
                    message = await receive()
            except TimeoutError as error:
                raise ProblemError(
                    408, f"no data arrived for {limits.body_seconds:g} seconds"
                ) from error
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
                if not message.get("more_body"):
                    received = -1
            return message

        return limited


def _too_large(limit: int) -> ProblemError:
    return ProblemError(
        413, f"the body has more than {limit:,} bytes; send fewer or smaller images"
    )


def _check_origin(headers: Headers) -> None:
    """Refuse requests that another web page makes a browser send."""
    origin = headers.get("origin")
    cross_site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
    if cross_site or (origin is not None and _address(origin) != headers.get("host")):
        raise ProblemError(403, "requests from other web pages are refused")


def _check_csrf(headers: Headers) -> None:
    """Require what a plain HTML form cannot send."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and CSRF_HEADER.lower() not in headers:
        raise ProblemError(
            403, f"send JSON as application/json, or add the header {CSRF_HEADER}: 1"
        )


def _address(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
