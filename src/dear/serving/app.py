"""The HTTP API and the page: images in, JSON out."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from dear import __version__
from dear.adapters.attention import overlay
from dear.adapters.results import Candidate
from dear.backbone.choice import TINY
from dear.errors import DearError, UnknownNameError, without_surrogates
from dear.limits import LimitError, at_most
from dear.reading.plain import split_list
from dear.serving.examples import encode_png
from dear.serving.limits import Limits, Refused
from dear.serving.middleware import Guard, Rate, client_of, respond
from dear.serving.service import Service

STATIC = Path(__file__).with_name("static")
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/table.js": "table.js"}
CAUTION = "This demo model has seen nothing but drawings: its results on photographs mean nothing."
ABOUT = (
    "A CLIP model, adapted with dear. Every POST takes an image as its body, or as the field image of a "
    "form; /api/batch takes several in a form. Refusals are JSON: error and kind. With a token, send "
    "Authorization: Bearer TOKEN."
)
BUG = "internal server error, see the server's log; other requests may succeed."
AT_ONCE = 4  # images of a request that are under way at a time, so that others wait little
IMAGE = {"type": "string", "format": "binary"}

Number = Annotated[int, Query(ge=1, le=100)]


class Images(NamedTuple):
    """The images of a request, and the field "classes" of its form."""

    images: list[bytes]
    classes: str | None = None


class Prediction(BaseModel):
    """The best classes of an image, and whether it looks like none of those with training images."""

    top: tuple[Candidate, ...]
    none_of_these: bool

    @classmethod
    def of(cls, ranked: tuple[tuple[Candidate, ...], bool]) -> Self:
        return cls(top=ranked[0], none_of_these=ranked[1])


class Failure(BaseModel):
    """Why an image of several was refused; retry_after is in seconds."""

    error: str
    kind: str
    status: int
    retry_after: int | None = None


class Neighbour(BaseModel):
    """An image of the index; the thumbnail is PNG in base64, null if the file can no longer be shown."""

    path: str
    score: float
    by: dict[str, float]
    copies: list[str]
    more_copies: int
    sha256: str
    thumbnail: str | None = None


def create_app(
    service: Service,
    *,
    token: str | None = None,
    hosts: tuple[str, ...] | None = None,
    origin: str | None = None,
    page: bool = False,
    access_log: bool = False,
) -> FastAPI:
    """The API of a service, with ``page`` also its page. ``hosts`` are the host names that it answers to,
    None for any. ``origin`` is the address of a proxy in front of it.
    """
    app: FastAPI = FastAPIOffline(redoc_url=None, title="dear", version=__version__, description=ABOUT)
    limits, rate = service.limits, Rate(service.limits.rate)
    guard = Guard(limits, rate, token, origin, access_log)
    guard.registry.register(service.batches)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.middleware("http")(guard)
    for kind in (DearError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, refuse)
    for path, name in FILES.items() if page else ():
        add_file(app, path, STATIC / name)

    async def read_images(request: Request) -> Images:
        check_parameters(request)
        rate.take(client_of(request))
        body = read_body(request, limits)
        if is_form(request):
            return await read_form(request, body)
        return Images([b"".join([part async for part in body])])

    Several = Annotated[Images, Depends(read_images)]

    async def read_image(sent: Several) -> tuple[bytes, str | None]:
        if len(sent.images) > 1:
            raise Refused(400, "form", "the form has more than one file: send several to /api/batch.")
        return sent.images[0], sent.classes

    One = Annotated[tuple[bytes, str | None], Depends(read_image)]

    @app.get("/health")
    async def health() -> dict[str, str]:
        """A sign that the server answers, for monitoring; needs no token."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Requests, durations, and images through the model, in Prometheus' text format."""
        return Response(generate_latest(guard.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/api/info")
    async def info() -> dict[str, Any]:
        """The served bundle, a caution about its backbone, the limits, and how requests were batched."""
        return describe(service)

    @app.get("/api/examples/{number}", response_class=Response)
    async def example(number: int) -> Response:
        """An example image, counted from 0, as PNG."""
        if not 0 <= number < len(service.examples):
            raise Refused(404, "not-found", f"there are {len(service.examples)} examples, from 0 on.")
        return Response(service.examples[number].png, media_type="image/png")

    @app.get("/api/roles")
    async def roles() -> dict[str, Any]:
        """The role table."""
        if (table := service.predictor.bundle.roles) is None:
            raise Refused(404, "not-found", "this bundle has no head roles.")
        return table.to_json()

    image_body = describe_body(IMAGE, {"image/*": {"schema": IMAGE}})
    images_body = describe_body({"type": "array", "items": IMAGE})

    @app.post("/api/predict", openapi_extra=image_body)
    async def predict(sent: One, top: Number = 5, classes: str | None = None) -> Prediction:
        """The best classes with probability, logit and evidence; among the classes in the query or a form,
        comma-separated, if there are any; * stands for the bundle's own.
        """
        vocabulary = await service.vocabulary(split_words(sent[1] if classes is None else classes))
        return Prediction.of(await service.predict(sent[0], vocabulary, top))

    @app.post("/api/batch", openapi_extra=images_body, response_model_exclude_unset=True)
    async def batch(
        request: Request, sent: Several, top: Number = 5, classes: str | None = None
    ) -> dict[str, list[Prediction | Failure]]:
        """The same for several images, the files named image of a form: results in their order, each with
        top, or with error, kind and status (and retry_after, in seconds).
        """
        if not is_form(request):
            raise Refused(415, "form", "send a form, as with curl -F image=@a.jpg -F image=@b.jpg.")
        if len(sent.images) > limits.images:
            raise Refused(413, "too-large", f"the form has more than {limits.images} images, the limit.")
        vocabulary = await service.vocabulary(split_words(sent.classes if classes is None else classes))
        lanes = asyncio.Semaphore(AT_ONCE)

        async def answer(number: int, image: bytes) -> Prediction | Failure:
            async with lanes:
                try:
                    if number:  # the request itself has been counted
                        rate.take(client_of(request))
                    return Prediction.of(await service.predict(image, vocabulary, top))
                except DearError as error:
                    refused = as_refused(error)
            seconds = {"retry_after": refused.retry_after} if refused.retry_after else {}
            return Failure(error=str(refused), kind=refused.kind, status=refused.status, **seconds)

        return {"results": await asyncio.gather(*map(answer, range(len(sent.images)), sent.images))}

    @app.post("/api/neighbours", openapi_extra=image_body, response_model_exclude_unset=True)
    async def neighbours(
        sent: One, by: str = "class", weights: str | None = None, count: Number = 8, thumbnails: bool = False
    ) -> dict[str, list[Neighbour]]:
        """The nearest images of the index for a mixture of features; thumbnails are base64 PNG."""
        hits = await service.neighbours(sent[0], split_words(by) or [], split_numbers(weights), count)
        rows = [Neighbour(**asdict(hit)) for hit in hits]
        for row in rows:
            row.path, row.copies = without_surrogates(row.path), [*map(without_surrogates, row.copies)]
        pictures = await asyncio.gather(*map(service.thumbnail, hits)) if thumbnails else []
        for row, picture in zip(rows, pictures, strict=False):
            row.thumbnail = base64.b64encode(picture).decode() if picture else None
        return {"neighbours": rows}

    @app.post("/api/attention", openapi_extra=image_body, response_class=Response)
    async def attention(
        sent: One, layer: int, head: int, token: str = "class", png: bool = False
    ) -> Response:
        """Where a head attends: the weights by token as JSON, or one token's over the image as PNG, with
        their sum in a header.
        """
        pixels = await service.decode(sent[0])
        maps = await service.attention(pixels, layer, head)
        if not png:
            return JSONResponse({"maps": {name: grid.tolist() for name, grid in maps.items()}})
        if token not in maps:
            raise Refused(
                400, "parameter", f"layer {layer} has no token {token!r}: it has {', '.join(maps)}."
            )
        share = {"Attention-On-Patches": f"{float(maps[token].sum()):.4f}"}
        return Response(encode_png(overlay(pixels, maps[token])), media_type="image/png", headers=share)

    return app


def add_file(app: FastAPI, path: str, file: Path) -> None:
    """Serve a file of the page."""

    async def send_file() -> FileResponse:
        return FileResponse(file, headers={"cache-control": "no-cache"})

    app.add_api_route(path, send_file, methods=["GET", "HEAD"], include_in_schema=False)


def describe(service: Service) -> dict[str, Any]:
    """What is served, for /api/info."""
    predictor, index, batches = service.predictor, service.index, service.batches
    bundle, image = predictor.bundle, predictor.clip.image
    has_heads, method = image.access == "heads", predictor.method
    measured, training = bundle.metrics, bundle.training
    tested = {"accuracy": measured.get("accuracy"), "images": training.get("test_images")}
    tested |= {"zero_shot": measured["zero_shot"]} if measured.get("zero_shot") is not None else {}
    return {
        "name": service.name,
        "method": bundle.method,
        "weights": asdict(bundle.weights),
        "caution": CAUTION if bundle.model == TINY else None,
        "tested": None if None in tested.values() else tested,
        "examples": [without_surrogates(example.name) for example in service.examples],
        "classes": predictor.classes,
        "features": predictor.features,
        "attributes": [name for name in method.layout.tokens_by_name if name not in method.unowned],
        "roles": bundle.roles is not None,
        "layers": image.depth if has_heads else 0,
        "heads": image.heads if has_heads else 0,
        "index": None if index is None else {"rows": index.rows, "features": index.features},
        "limits": asdict(service.limits),
        "batches": {"images": batches.images, "batches": batches.batches, "largest": batches.largest},
    }


def describe_body(image: dict[str, Any], whole: dict[str, Any] | None = None) -> dict[str, Any]:
    """The body of a route in the OpenAPI schema: a form and, unless there may be several, an image."""
    fields = {"image": image, "classes": {"type": "string", "description": "comma-separated names"}}
    form = {"schema": {"type": "object", "required": ["image"], "properties": fields}}
    return {"requestBody": {"required": True, "content": {**(whole or {}), "multipart/form-data": form}}}


def check_parameters(request: Request) -> None:
    """Raise UnknownNameError for a parameter in the address that the route does not take."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise UnknownNameError("parameter", name, known)


def is_form(request: Request) -> bool:
    """True for a form with files; curl calls a whole image a form of another kind."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def read_body(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """The parts of a body, whose size need not be told before. Raises Refused (413)."""
    size = 0
    async for part in request.stream():
        size += len(part)
        limits.check_size(size)
        yield part


async def read_form(request: Request, body: AsyncIterator[bytes]) -> Images:
    """The files "image" of a form, and its field "classes". Raises Refused."""
    try:
        form = await MultiPartParser(request.headers, body, max_fields=8).parse()  # type: ignore[arg-type]
    except MultiPartException as error:
        raise Refused(400, "form", f"the form cannot be read: {error.message}") from None
    images = [await file.read() for file in form.getlist("image") if isinstance(file, UploadFile)]
    classes = form.get("classes")
    await form.close()
    if not images or {*form} - {"image", "classes"}:
        raise Refused(400, "form", "a form has files named image, and may have a field classes.")
    return Images(images, classes if isinstance(classes, str) else None)


def split_words(text: str | None) -> list[str] | None:
    """Comma-separated words, quoted as on the command line; None for none. Raises LimitError, Refused."""
    at_most("request_text", len(text or ""), "the request")
    try:
        return [*filter(None, split_list(text or ""))] or None
    except ValueError as error:
        raise Refused(400, "parameter", str(error)) from None


def split_numbers(text: str | None) -> list[float] | None:
    """Comma-separated numbers. Raises Refused."""
    try:
        return [float(word) for word in split_words(text) or []] or None
    except ValueError:
        raise Refused(400, "parameter", f"weights must be numbers such as 1,0.5; got {text!r}.") from None


async def refuse(_request: Request, error: Exception) -> JSONResponse:
    """The answer to an error."""
    return respond(as_refused(error))


def as_refused(error: Exception) -> Refused:
    """An error as a refusal, which says nothing of what is inside."""
    match error:
        case Refused():
            return error
        case LimitError():
            return Refused(413, "too-large", str(error))
        case DearError():
            return Refused(400, "parameter", str(error))
        case RequestValidationError():
            faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
            return Refused(422, "parameter", f"{faults}.")
        case HTTPException():
            kind = "not-found" if error.status_code in (404, 405) else "parameter"
            return Refused(error.status_code, kind, f"{error.detail}.")
        case ClientDisconnect():
            return Refused(400, "parameter", "the client disconnected.")
    return Refused(500, "server", BUG)
