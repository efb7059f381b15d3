"""The HTTP API: an image in, JSON out."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from dear.errors import DearError
from dear.serving.attention import overlay
from dear.serving.guard import HEADERS, Guard
from dear.serving.limits import Refused, check_upload
from dear.serving.service import Service, Upload, png_of

METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]
LOOPBACK = frozenset(["localhost", "127.0.0.1", "::1"])


def create_app(
    service: Service, *, token: str | None = None, hosts: frozenset[str] | None = LOOPBACK
) -> FastAPI:
    """The API of a service, behind the guard. ``hosts`` are the names that it answers to; None is any."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # The interactive documentation would load its scripts from elsewhere; docs/how-to/serve.md is ours.
    app = FastAPI(title="dear", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Guard, limits=service.limits, token=token, hosts=hosts)
    busy = asyncio.Semaphore(service.limits.waiting)

    for kind in (DearError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refuse)

    async def with_image(request: Request, work: Callable[[Upload], Awaitable[Any]]) -> Any:
        """Read and check the request's image, then do the work. Raises Refused."""
        if busy.locked():
            raise Refused(503, "the server is busy: try again soon.", {"Retry-After": "2"})
        async with busy:
            data = await _image_of(request)
            check_upload(len(data), service.limits)
            return await work(await run_in_threadpool(service.take, data))

    @app.get("/api/info")
    def info() -> dict[str, Any]:
        """What is served, its limits, and how requests were batched."""
        bundle, batches, index = service.predictor.bundle, service.batches, service.index
        return {
            "method": bundle.method,
            "weights": asdict(bundle.weights),
            "classes": list(service.predictor.classes),
            "features": list(service.predictor.features),
            "layers": service.predictor.clip.image.depth,
            "heads": service.predictor.clip.image.heads,
            "index": None if index is None else {"rows": index.rows, "features": list(index.features)},
            "limits": asdict(service.limits),
            "batches": {"images": batches.items, "batches": batches.batches, "largest": batches.largest},
        }

    @app.get("/api/roles")
    def roles() -> dict[str, Any]:
        """The role table."""
        if service.roles is None:
            raise Refused(404, "this bundle has no head roles.")
        return service.roles.to_json()

    @app.post("/api/predict")
    async def predict(request: Request, top: int = 5, classes: str | None = None) -> dict[str, Any]:
        """The best classes with probability, logit and evidence; among other classes, comma-separated."""

        async def work(upload: Upload) -> dict[str, Any]:
            features = await asyncio.wrap_future(service.features(upload))
            found = await run_in_threadpool(service.classify, features, top, words(classes))
            return {"top": [asdict(one) for one in found]}

        return dict(await with_image(request, work))

    @app.post("/api/neighbours")
    async def neighbours(
        request: Request,
        by: str = "class",
        weights: str | None = None,
        count: int = 8,
        thumbnails: bool = False,
    ) -> dict[str, Any]:
        """The nearest images of the index by a mixture of features; thumbnails are base64 PNG."""

        async def work(upload: Upload) -> dict[str, Any]:
            given = numbers(weights)
            features = await asyncio.wrap_future(service.features(upload))
            hits = await run_in_threadpool(
                service.neighbours, features, words(by) or [], given, count, upload.sha256
            )
            found = [asdict(hit) for hit in hits]
            for one in found if thumbnails else ():
                picture = await run_in_threadpool(service.thumbnail, one["path"])
                one["thumbnail"] = picture and base64.b64encode(png_of(picture)).decode()
            return {"neighbours": found}

        return dict(await with_image(request, work))

    @app.post("/api/attention")
    async def attention(
        request: Request, layer: int, head: int, token: str = "class", png: bool = False
    ) -> Response:
        """Where a head looks: the weights by token as JSON, or one token's over the image as PNG."""

        async def work(upload: Upload) -> Response:
            maps = await run_in_threadpool(service.attention, upload, layer, head)
            if not png:
                return JSONResponse({"maps": {name: one.tolist() for name, one in maps.items()}})
            if token not in maps:
                raise Refused(400, f"layer {layer} has no token {token!r}: it has {', '.join(maps)}.")
            return Response(png_of(overlay(upload.pixels, maps[token])), media_type="image/png")

        found: Response = await with_image(request, work)
        return found

    # The page, at the root, would answer what is left.
    @app.api_route("/api/{rest:path}", methods=METHODS, include_in_schema=False)
    def nothing(request: Request) -> None:
        """Refuse what is none of the above."""
        place = request.url.path
        routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path == place]
        if not routes:
            raise Refused(404, f"there is nothing at {place}.")
        method = ", ".join(sorted({method for route in routes for method in route.methods or ()}))
        raise Refused(405, f"{place} does not take {request.method}: use {method}.", {"Allow": method})

    return app


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    """The answer to whatever was raised. What is a bug is told in the log alone."""
    if isinstance(error, RequestValidationError):
        told = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        error = Refused(422, f"{told}.")
    elif isinstance(error, HTTPException):
        error = Refused(error.status_code, f"{error.detail.rstrip('.')}.", dict(error.headers or {}))
    if isinstance(error, DearError):
        status, headers = (error.status, error.headers) if isinstance(error, Refused) else (400, {})
        return JSONResponse({"error": str(error), "kind": type(error).__name__}, status, headers)
    told = "an error in the server, which its log tells; other requests may do."
    return JSONResponse({"error": told, "kind": "ServerError"}, 500, HEADERS)  # past the guard


def words(text: str | None) -> list[str] | None:
    """Comma-separated words; None for none."""
    found = [word.strip() for word in (text or "").split(",") if word.strip()]
    return found or None


def numbers(text: str | None) -> list[float] | None:
    """Comma-separated numbers. Raises Refused (400)."""
    try:
        return [float(word) for word in words(text) or []] or None
    except ValueError:
        raise Refused(
            400, f"weights are numbers with commas between them, such as 1,0.5; got {text!r}."
        ) from None


async def _image_of(request: Request) -> bytes:
    """The image: the field "image" of a form, or the whole body."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return await request.body()
    async with request.form(max_files=1, max_fields=8) as form:
        field = form.get("image")
        if not isinstance(field, UploadFile):
            raise Refused(400, "the form has no file 'image': send one, as with curl -F image=@photo.jpg.")
        return await field.read()
