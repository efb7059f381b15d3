"""The HTTP API: images in, JSON out."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dear.adapters.attention import overlay
from dear.adapters.predictor import Vocabulary
from dear.adapters.results import Candidate
from dear.backbone.choice import TINY
from dear.errors import DearError, UnknownNameError, without_surrogates
from dear.limits import at_most
from dear.reading.plain import split_list
from dear.serving.batch import batch_predictions, decoded, first_of, refusal
from dear.serving.bodies import form_parts, is_form
from dear.serving.clients import Client, Clients
from dear.serving.examples import png_of
from dear.serving.limits import Rate, Refused, check_upload, work_of_answer, work_of_names
from dear.serving.metrics import Metrics, Observer, template_of
from dear.serving.middleware import SecurityMiddleware, client_of
from dear.serving.pages import add_documentation, add_page
from dear.serving.samples import of_route
from dear.serving.service import Service, Upload, check_count
from dear.serving.threads import in_thread, of_queue

ClassChoice = tuple[tuple[str, ...], Vocabulary | None]
CAUTION = "This demo model has seen nothing but drawings: its results on photographs mean nothing."
LOOPBACK = frozenset(["localhost", "127.0.0.1", "::1"])


def create_app(
    service: Service,
    *,
    token: str | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    origin: str | None = None,
    page: bool = False,
) -> FastAPI:
    """The API of a service, with ``page`` also its page, behind the security middleware. ``hosts`` are the
    host names that it answers to, None for any. ``origin`` is the address of a proxy in front of it.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    checks = [Depends(_known_parameters)]
    app = FastAPI(openapi_url=None, redirect_slashes=False, lifespan=lifespan, dependencies=checks)
    limits, rate = service.limits, Rate(service.limits.rate)
    app.add_middleware(SecurityMiddleware, limits=limits, rate=rate, token=token, hosts=hosts, origin=origin)
    metrics = Metrics(service)
    app.add_middleware(Observer, metrics=metrics, template=lambda scope: template_of(app.routes, scope))
    clients = Clients(limits, rate)
    if page:
        add_page(app)

    for kind in (DearError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refuse)

    @asynccontextmanager
    async def slot(request: Request, most: int) -> AsyncIterator[tuple[list[bytes], dict[str, str], Client]]:
        """A request's images, up to ``most``, the form's fields, and the client. Raises Refused.

        A slot is taken only once the request has arrived completely, so that slow senders hold none.
        """
        address = client_of(request.scope)
        clients.require_room(address)
        images, fields = await _images_of(request, most, clients.parsing.place(address))
        for name in fields:
            if name != "classes":
                raise UnknownNameError("field", name, ["classes", "image"])
        check_upload(sum(map(len, images)), limits)
        with clients.request(address) as client:
            yield images, fields, client

    async def with_image(
        request: Request, work: Callable[[Upload, dict[str, str], Client], Awaitable[Any]]
    ) -> Any:
        """Read and check the request's image, then call ``work`` with it. Raises Refused."""
        async with slot(request, 1) as ([data], fields, client):
            return await work(await decoded(service, client, data), fields, client)

    def class_choice(
        fields: dict[str, str], classes: str | None, client: Client, images: int = 1
    ) -> ClassChoice:
        """The classes in a request's query or form, and their vocabulary if they need not be encoded. Names
        are charged when they are encoded, which some methods do anew for each image.
        """
        listed = words(fields.get("classes") if classes is None else classes)
        names = tuple(listed or service.predictor.classes)
        vocabulary = service.vocabulary(names)
        times = images if service.predictor.method.text_depends_on_image else int(vocabulary is None)
        client.charge(times * work_of_names(names, len(service.predictor.bundle.templates)))
        return names, vocabulary

    @app.get("/health")
    async def health() -> dict[str, str]:
        """A sign that the server answers, for monitoring; needs no token, and says nothing else."""
        return {"status": "ok"}

    @cache
    def facts() -> tuple[dict[str, Any], int]:
        """The part of /api/info that never changes, and its length in bytes."""
        bundle, index = service.predictor.bundle, service.index
        image = service.predictor.clip.image
        answer = {
            "name": service.name,
            "method": bundle.method,
            "weights": asdict(bundle.weights),
            "caution": CAUTION if bundle.model == TINY else None,
            "tested": tested(bundle.metrics, bundle.training),
            "examples": [without_surrogates(example.name) for example in service.examples],
            "classes": list(service.predictor.classes),
            "features": list(service.predictor.features),
            "attributes": list(service.attributes),
            "roles": service.roles is not None,
            "layers": image.depth if image.access == "heads" else 0,
            "heads": image.heads if image.access == "heads" else 0,
            "index": None if index is None else {"rows": index.rows, "features": list(index.offered)},
            "limits": asdict(limits),
        }
        return answer, len(JSONResponse(answer).body)

    @cache
    def table() -> bytes:
        """The answer of /api/roles."""
        if service.roles is None:
            raise Refused(404, "this bundle has no head roles.")
        return bytes(JSONResponse(service.roles.to_json()).body)

    @app.get("/api/info")
    async def info(request: Request) -> Response:
        """The served bundle, a caution about its backbone, the limits, and how requests were batched."""
        answer, length = facts()
        rate.take(client_of(request.scope), work_of_answer(length))
        batches = service.batches
        counts = {"images": batches.items, "batches": batches.batches, "largest": batches.largest}
        return JSONResponse(answer | {"batches": counts})

    @app.get("/api/examples/{number}", response_class=Response)
    async def example(number: int) -> Response:
        """An example image, counted from 0, as PNG."""
        if not 0 <= number < len(service.examples):
            raise Refused(404, f"there is no example {number}: this server has {len(service.examples)}.")
        return Response(service.examples[number].png, media_type="image/png")

    @app.get("/api/roles")
    async def roles(request: Request) -> Response:
        """The role table."""
        rate.take(client_of(request.scope), work_of_answer(len(table())))
        return Response(table(), media_type="application/json")

    @app.get("/metrics", response_class=PlainTextResponse, openapi_extra=of_route("metrics"))
    async def prometheus() -> Response:
        """Requests, durations, and images through the model, in Prometheus' text format."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/api/predict", openapi_extra=of_route("predict"))
    async def predict(request: Request, top: int = 5, classes: str | None = None) -> dict[str, Any]:
        """The best classes with probability, logit and evidence; among the classes in the query or a form,
        comma-separated, if there are any.
        """

        async def work(upload: Upload, fields: dict[str, str], client: Client) -> dict[str, Any]:
            check_count("top", top)
            names, vocabulary = class_choice(fields, classes, client)
            candidates: tuple[Candidate, ...] = ()
            async with client.computing():
                features = await of_queue(service.features(upload))
                if vocabulary is not None:
                    async with client.scoring():
                        candidates = await in_thread(partial(service.classify, features, vocabulary, top))
            if vocabulary is None:
                result = service.classify_new([features], names, top, client=client.address)
                [candidates] = await first_of(asyncio.wrap_future(result), request.receive())
            return {"top": [asdict(candidate) for candidate in candidates]}

        return dict(await with_image(request, work))

    @app.post("/api/batch", openapi_extra=of_route("batch"))
    async def batch(request: Request, top: int = 5, classes: str | None = None) -> dict[str, Any]:
        """The same for several images, the files named image of a form: results in their order, each with
        top, or with error, kind and status (and retry_after, in seconds).
        """
        check_count("top", top)
        async with slot(request, limits.images) as (images, fields, client):
            names, vocabulary = class_choice(fields, classes, client, len(images))
            work = batch_predictions(service, client, images, names, vocabulary, top)
            return {"results": await first_of(work, request.receive())}

    async def thumbnails_of(files: Sequence[tuple[str, str]], client: Client) -> list[bytes | None]:
        """The thumbnails of files of the index, of which each has a path and a SHA-256.

        While one is made, the next waits in line: else one of another client would come before each.
        """
        thumbnails: list[bytes | None] = [None] * len(files)
        remaining = iter(enumerate(files))

        async def lane() -> None:
            for number, (path, sha256) in remaining:
                async with client.decoding_thumbnail(), client.decoding():
                    thumbnails[number] = await in_thread(partial(service.thumbnail, path, sha256))

        async with asyncio.TaskGroup() as lanes:
            for _ in range(2):
                lanes.create_task(lane())
        return thumbnails

    @app.post("/api/neighbours", openapi_extra=of_route("neighbours"))
    async def neighbours(
        request: Request,
        by: str = "class",
        weights: str | None = None,
        count: int = 8,
        thumbnails: bool = False,
    ) -> dict[str, Any]:
        """The nearest images of the index for a mixture of features; thumbnails are base64 PNG."""

        async def work(upload: Upload, _: dict[str, str], client: Client) -> dict[str, Any]:
            mixture = numbers(weights)
            async with client.computing():
                features = await of_queue(service.search_features(upload))
            async with client.searching():
                hits = await in_thread(
                    partial(service.neighbours, features, words(by) or [], mixture, count, upload.sha256)
                )
            if thumbnails:
                client.charge(len(hits))
            paths = (path for hit in hits for path in (hit.path, *hit.copies))
            work_of_paths = work_of_answer(sum(map(len, paths)))
            client.charge(work_of_paths)  # before the answer is made, which takes longer
            neighbours = [
                asdict(hit)
                | {
                    "path": without_surrogates(hit.path),
                    "copies": [*map(without_surrogates, hit.copies)],
                }
                for hit in hits
            ]
            client.charge(work_of_answer(len(json.dumps(neighbours))) - work_of_paths)
            if thumbnails:
                files = [(hit.path, hit.sha256) for hit in hits]
                pictures = await first_of(thumbnails_of(files, client), request.receive())
                for neighbour, picture in zip(neighbours, pictures, strict=True):
                    neighbour["thumbnail"] = picture and base64.b64encode(picture).decode()
            return {"neighbours": neighbours}

        return dict(await with_image(request, work))

    @app.post("/api/attention", openapi_extra=of_route("attention"))
    async def attention(
        request: Request, layer: int, head: int, token: str = "class", png: bool = False
    ) -> Response:
        """Where a head attends: the weights by token as JSON, or one token's over the image as PNG, with
        their sum in a header.
        """

        async def work(upload: Upload, _: dict[str, str], client: Client) -> Response:
            async with client.attending():
                maps = await in_thread(partial(service.attention, upload, layer, head))
            if not png:
                return JSONResponse({"maps": {name: grid.tolist() for name, grid in maps.items()}})
            if token not in maps:
                raise Refused(400, f"layer {layer} has no token {token!r}: it has {', '.join(maps)}.")
            picture = await in_thread(lambda: png_of(overlay(upload.pixels, maps[token])))
            share = {"Attention-On-Patches": f"{float(maps[token].sum()):.4f}"}
            return Response(picture, media_type="image/png", headers=share)

        response: Response = await with_image(request, work)
        return response

    add_documentation(app, token is not None)
    return app


async def _known_parameters(request: Request) -> None:
    """Raise UnknownNameError for a parameter in the address that a route of the API does not take."""
    route = request.scope["route"]
    known = [parameter.alias for parameter in route.dependant.query_params]
    for name in request.query_params if route.path.startswith("/api/") else ():
        if name not in known:
            raise UnknownNameError("parameter", name, known)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """The response to an error of the client's. The middleware answers all others."""
    if isinstance(error, RequestValidationError):
        message = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
        error = Refused(422, f"{message}.", kind="parameter")
    elif isinstance(error, HTTPException):
        error = _of_framework(request, error)
    assert isinstance(error, DearError)
    status, body, headers = refusal(error)
    return JSONResponse(body, status, headers)


def _of_framework(request: Request, error: HTTPException) -> Refused:
    path, headers = request.url.path[:200], dict(error.headers or {})
    if error.status_code == 404:
        return Refused(404, f"there is nothing at {path}.")
    if error.status_code == 405:
        return Refused(405, f"{path} does not take {request.method}: use {headers['Allow']}.", headers)
    return Refused(error.status_code, f"{error.detail.rstrip('.')}.", headers)


def tested(metrics: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, float] | None:
    """The bundle's accuracy (fraction) and the number of test images that it was measured on, if known; with
    that of zero-shot, if it was measured too.
    """
    accuracy, images, zero_shot = (
        metrics.get("accuracy"),
        training.get("test_images"),
        metrics.get("zero_shot"),
    )
    if not isinstance(accuracy, float) or not isinstance(images, int):
        return None
    measured: dict[str, float] = {"accuracy": accuracy, "images": images}
    return {**measured, "zero_shot": zero_shot} if isinstance(zero_shot, float) else measured


def words(text: str | None) -> list[str] | None:
    """Comma-separated words, quoted as on the command line; None for none. Raises LimitError for a long text,
    before it is split, and Refused (400).
    """
    at_most("request_text", len(text or ""), "the request")
    try:
        return [*filter(None, split_list(text or ""))] or None
    except ValueError as error:
        raise Refused(400, str(error)) from None


def numbers(text: str | None) -> list[float] | None:
    """Comma-separated numbers. Raises Refused (400)."""
    try:
        return [float(word) for word in words(text) or []] or None
    except ValueError:
        raise Refused(
            400, f"weights must be numbers separated by commas, such as 1,0.5; got {text!r}."
        ) from None


async def _images_of(
    request: Request, most: int, parsing: AbstractAsyncContextManager[None]
) -> tuple[list[bytes], dict[str, str]]:
    """The images and a form's other fields: from the files "image" of a form, or, of one, the whole body. A
    form is taken apart in turn with those of other clients.
    """
    try:
        body = b"".join([chunk async for chunk in request.stream()])
    except ClientDisconnect:
        raise Refused(400, "the client disconnected.") from None
    kind = request.headers.get("content-type", "")
    if is_form(kind):
        async with parsing:
            return await in_thread(partial(form_parts, body, kind, most))
    if most > 1:
        raise Refused(
            415,
            "several images come as a form: send it as with curl -F image=@a.jpg -F image=@b.jpg.",
            kind="form",
        )
    return [body], {}
