"""The HTTP API and the page: images in, JSON out."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator import Instrumentator, metrics
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message

from dear import __version__
from dear.adapters.attention import overlay
from dear.adapters.operating_words import describe_point
from dear.adapters.vocabulary import can_be_steered
from dear.adapters.wording import UNOWNED, accuracy_interval, explain_features, name_likenesses
from dear.backbone.names import TINY
from dear.data.images.decode import encode_png
from dear.errors import DearError
from dear.limits import require_at_most
from dear.methods.optional import token_layout
from dear.reading.plain import read_weights, split_list
from dear.serving.guarded import add_files, as_refused, check_parameters, guard
from dear.serving.limits import Limits, Refused
from dear.serving.middleware import AnswerHead
from dear.serving.review import REVIEW_FILES, add_review
from dear.serving.service import Served, Service
from dear.text import without_surrogates

FILES = {
    "/": "index.html",
    "/page.js": "page.js",
    "/table.js": "table.js",
    "/attributes.js": "attributes.js",
    "/steering.js": "steering.js",
}
CAUTION = "This demo model has seen nothing but drawings: its results on photographs mean nothing."
ABOUT = (
    "Every POST takes an image as its body, or as the field image of a form; /api/batch several in a form."
)
IMAGES_AT_ONCE = 4  # images of a request that are under way at a time, so that others wait little
IMAGE: dict[str, Any] = {"type": "string", "format": "binary"}
IMAGES: dict[str, Any] = {"type": "array", "items": IMAGE}

UpTo100 = Annotated[int, Query(ge=1, le=100)]


class Upload(NamedTuple):
    """The images of a request; of a form, also its field "classes"."""

    images: list[bytes]
    is_form: bool = False
    classes: str | None = None

    @property
    def image(self) -> bytes:
        """The only one. Raises Refused."""
        if len(self.images) > 1:
            raise Refused(400, "form", "the form has more than one file: send several to /api/batch.")
        return self.images[0]


def create_app(
    service: Service,
    *,
    token: str | None = None,
    hosts: tuple[str, ...] | None = None,
    origin: str | None = None,
    page: bool = False,
    load: Callable[[Service], Service] | None = None,
) -> FastAPI:
    """The API of a service, with ``page`` also its page. ``hosts`` are the host names that it answers to,
    None for any. ``origin`` is that of a proxy in front of it, in lower case. ``load``
    makes the service of the bundle as it is by then, given the present one, for /api/reload.
    """
    app: FastAPI = FastAPIOffline(redoc_url=None, title="dear", version=__version__, description=ABOUT)
    limits = service.limits
    served = app.state.served = Served(service, load if token else None)
    guard(app, limits, token, hosts, origin)
    count_requests(app, served)
    app.add_middleware(AnswerHead)
    add_review(app, lambda: served.now.review)
    add_files(app, FILES | REVIEW_FILES if page else {})

    async def read(request: Request) -> Upload:
        check_parameters(request)
        return await read_upload(request, limits)

    async def read_with_classes(request: Request) -> Upload:
        check_parameters(request)
        return await read_upload(request, limits, with_classes=True)

    Sent = Annotated[Upload, Depends(read)]
    SentWithClasses = Annotated[Upload, Depends(read_with_classes)]

    @app.get("/health")
    async def health() -> dict[str, str]:
        """A sign that the server answers, for monitoring; needs no token."""
        return {"status": "ok"}

    @app.get("/api/info")
    async def info() -> dict[str, Any]:
        """The served bundle, a caution about its backbone, the limits, and how requests were batched."""
        return describe(served.now)

    @app.get("/api/roles")
    async def roles() -> dict[str, Any]:
        """The role table."""
        if (table := served.now.predictor.bundle.roles) is None:
            raise Refused(404, "not-found", "this bundle has no head roles.")
        return table.to_json()

    @app.post("/api/predict", openapi_extra=describe_body(IMAGE, with_classes=True))
    async def predict(
        sent: SentWithClasses,
        top: UpTo100 = 5,
        classes: str | None = None,
        fusion: str | None = None,
        decoupled: bool = False,
    ) -> dict[str, Any]:
        """The best classes with probability, logit and evidence; among the classes in the query or a form,
        comma-separated, if there are any; * stands for the bundle's own. fusion gives features other weights,
        as in class=1,color=0, and decoupled takes the class feature alone: the best classes by the bundle's
        own weights are then there too, as unchanged.
        """
        steering = {"fusion": split_weights(fusion), "decoupled": decoupled}
        service = served.now
        vocabulary = await service.vocabulary(split_words(classes or sent.classes), **steering)
        return await service.predict(sent.image, vocabulary, top)

    @app.post("/api/batch", openapi_extra=describe_body(IMAGES, with_classes=True))
    async def batch(
        sent: SentWithClasses, top: UpTo100 = 5, classes: str | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """The same for several images, the files named image of a form: results in their order, each with
        top, or with error, kind and status (and retry_after, in seconds).
        """
        if not sent.is_form:
            raise Refused(415, "form", "send a form, as with curl -F image=@a.jpg -F image=@b.jpg.")
        if len(sent.images) > limits.images:
            raise Refused(413, "too-large", f"the form has more than {limits.images} images, the limit.")
        service = served.now
        vocabulary = await service.vocabulary(split_words(classes or sent.classes))
        lanes = asyncio.Semaphore(IMAGES_AT_ONCE)

        async def answer(image: bytes) -> dict[str, Any]:
            async with lanes:
                try:
                    return await service.predict(image, vocabulary, top)
                except DearError as error:
                    refused = as_refused(error)
            wait = {"retry_after": refused.retry_after} if refused.retry_after else {}
            return {"error": str(refused), "kind": refused.kind, "status": refused.status} | wait

        return {"results": await asyncio.gather(*map(answer, sent.images))}

    @app.post("/api/labels", openapi_extra=describe_body(IMAGE))
    async def labels(sent: Sent, label: str, name: str = "uploaded", new: bool = False) -> dict[str, Any]:
        """Keep what an image shows in the corrections beside the data: the name of a class, or none for an
        image of no class; with its file name, if it is not there. A name that is no class gets 409, unless it
        is said to be new. Needs --data.
        """
        return await served.now.correct(sent.image, label, name, is_new=new)

    @app.post("/api/neighbors", openapi_extra=describe_body(IMAGE))
    async def neighbors(
        sent: Sent,
        by: str = "class",
        weights: str | None = None,
        count: UpTo100 = 8,
        thumbnails: bool = False,
    ) -> dict[str, list[dict[str, Any]]]:
        """The nearest images of the index for a mixture of features; thumbnails are base64 PNG, or null for a
        file that can no longer be shown.
        """
        service = served.now
        hits = await service.neighbors(sent.image, split_words(by) or [], split_numbers(weights), count)
        pictures = await asyncio.gather(*map(service.thumbnail, hits)) if thumbnails else [None] * len(hits)
        rows = []
        for hit, picture in zip(hits, pictures, strict=True):
            names: dict[str, Any] = {
                "path": without_surrogates(hit.path),
                "copies": [*map(without_surrogates, hit.copies)],
            }
            names["label"] = await service.corrected_label(hit)
            shown = {"thumbnail": base64.b64encode(picture).decode() if picture else None}
            rows.append(asdict(hit) | names | (shown if thumbnails else {}))
        return {"neighbors": rows}

    @app.post("/api/preview", openapi_extra=describe_body(IMAGE), response_class=Response)
    async def preview(sent: Sent) -> Response:
        """A small upright PNG of an image that browsers cannot show, such as HEIC."""
        return Response(await served.now.preview(sent.image), media_type="image/png")

    @app.post("/api/attention", openapi_extra=describe_body(IMAGE), response_class=Response)
    async def attention(
        sent: Sent, layer: int, head: int, token: str = "class", png: bool = False
    ) -> Response:
        """Where a head attends: the weights by token as JSON, or one token's over the image as PNG, with
        their sum in a header.
        """
        service = served.now
        pixels = await service.decode(sent.image)
        maps = await service.attention(pixels, layer, head)
        if not png:
            return JSONResponse({"maps": {name: grid.tolist() for name, grid in maps.items()}})
        if token not in maps:
            message = f"layer {layer} has no token {token!r}: it has {', '.join(maps)}."
            raise Refused(400, "parameter", message)
        share = {"Attention-On-Patches": f"{float(maps[token].sum()):.4f}"}
        return Response(encode_png(overlay(pixels, maps[token])), media_type="image/png", headers=share)

    @app.post("/api/reload")
    async def reload(request: Request) -> dict[str, Any]:
        """Take the bundle as it is by now, without a stop: after a new fit. Needs --token."""
        check_parameters(request)
        return await served.reload()

    return app


def count_requests(app: FastAPI, served: Served) -> None:
    """Add /metrics: requests by route and status, their durations, and images through the model, in
    Prometheus' text format. No label is chosen by a client, as a method's name would be.
    """
    registry = CollectorRegistry()
    registry.register(served)
    labels: dict[str, Any] = {"should_include_method": False, "registry": registry}
    (
        Instrumentator(should_group_status_codes=False, registry=registry)
        .add(metrics.requests(metric_namespace="dear", **labels))
        .add(metrics.latency(metric_namespace="dear", should_include_status=False, **labels))
        .instrument(app)
        .expose(app)
    )


def describe(service: Service) -> dict[str, Any]:
    """What is served, for /api/info."""
    predictor, index, batches = service.predictor, service.index, service.batches
    bundle, image = predictor.bundle, predictor.clip.image
    has_heads, tokens = image.access == "heads", token_layout(predictor.method).tokens_by_name
    names = ("accuracy", "zero_shot", "chance", "images", "split")
    tested = bundle.scores and {
        **{name: getattr(bundle.scores, name) for name in names},
        "interval": accuracy_interval(bundle.scores),
    }
    own_weights = predictor.own_vocabulary.weights() if can_be_steered(predictor.method) else None
    return {
        "name": service.name,
        "bundle": service.identity,
        "method": bundle.method,
        "weights": asdict(bundle.weights),
        "caution": CAUTION if bundle.model == TINY else None,
        "tested": tested,
        "operating": describe_point(bundle.training.operating),
        "classes": predictor.classes,
        "features": predictor.features,
        "explained": explain_features(bundle.method, [*predictor.features, UNOWNED]),
        "likenesses": name_likenesses(bundle.method, predictor.features),
        "attributes": [name for name in tokens if name not in predictor.without_heads],
        "corrections": service.data is not None,
        "review": service.review is not None,
        "fusion": own_weights,
        "roles": bundle.roles is not None,
        "layers": image.depth if has_heads else 0,
        "heads": image.heads if has_heads else 0,
        "index": None if index is None else {"rows": index.rows, "features": index.features},
        "limits": asdict(service.limits),
        "batches": {"images": batches.images, "batches": batches.batches, "largest": batches.largest},
    }


def describe_body(image: dict[str, Any], *, with_classes: bool = False) -> dict[str, Any]:
    """The body of a route in the OpenAPI schema: a form and, unless there may be several, an image."""
    fields = {"image": image}
    if with_classes:
        fields["classes"] = {"type": "string", "description": "comma-separated names"}
    form = {"schema": {"type": "object", "required": ["image"], "properties": fields}}
    whole = {"image/*": {"schema": IMAGE}} if image is IMAGE else {}
    return {"requestBody": {"required": True, "content": {**whole, "multipart/form-data": form}}}


async def read_upload(request: Request, limits: Limits, *, with_classes: bool = False) -> Upload:
    """The body, or the files "image" of a form and with ``with_classes`` its field "classes"; the size need
    not be told before. Raises Refused.
    """
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        limits.check_size(size)
        return message

    bounded = Request(request.scope, receive)
    # curl calls a whole image a form of another kind.
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return Upload([await bounded.body()])
    try:
        form = await bounded.form(max_fields=8)
    except HTTPException as error:
        raise Refused(400, "form", f"the form cannot be read: {error.detail}") from None
    images = [await file.read() for file in form.getlist("image") if isinstance(file, UploadFile)]
    classes = form.get("classes")
    await form.close()
    if not images or {*form} - {"image", *(["classes"] if with_classes else [])}:
        also = ", and may have a field classes" if with_classes else " and no other field"
        raise Refused(400, "form", f"a form for {request.url.path} has files named image{also}.")
    return Upload(images, True, classes if isinstance(classes, str) else None)


def split_words(text: str | None) -> list[str] | None:
    """Comma-separated words, quoted as on the command line; None for none. Raises LimitError, Refused."""
    require_at_most("request_text", len(text or ""), "the request")
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


def split_weights(text: str | None) -> dict[str, float] | None:
    """Weights of features, as in class=1,color=0; None for none. Raises as `split_words`, SettingsError."""
    words = split_words(text)
    return None if words is None else read_weights(words)
