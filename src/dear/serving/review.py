"""The review page and its API: images of which something looks wrong, one answer after the other."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi_offline import FastAPIOffline

from dear import __version__
from dear.adapters.bundle import Bundle
from dear.adapters.review_answers import Doubt, ReviewAnswers, open_review, read_issues
from dear.data.images.decode import as_image, decode
from dear.errors import DataError
from dear.reading.files import expanded
from dear.serving.guarded import add_files, check_parameters, guard
from dear.serving.limits import Limits, Refused
from dear.serving.middleware import REVIEW, AnswerHead
from dear.serving.threads import Result, run_in

REVIEW_FILES = {
    REVIEW: "review.html",
    "/table.js": "table.js",
    "/review.js": "review.js",
    "/page.css": "page.css",
    "/shared.js": "shared.js",
}
SIDE, LONGEST = 480, 1280
"""Pixels of the shorter side of a picture, and at most of the longer one."""
DECODERS = 2  # pictures decoded at a time
NONE = (
    "there is nothing to review: the fit found nothing to look at, or `dear serve` was started without "
    "--data, or its bundle has no review.csv."
)


class ReviewDesk:
    """A review for the requests of one event loop, in threads of its own: one for the answers, two for
    pictures. It is opened when it is first asked for.
    """

    def __init__(self, open_answers: Callable[[], ReviewAnswers]) -> None:
        self._open, self._review = open_answers, dict[str, ReviewAnswers]()
        self._answers, self._pictures = ThreadPoolExecutor(1), ThreadPoolExecutor(DECODERS)

    def _opened(self) -> ReviewAnswers:
        if not self._review:
            self._review["now"] = self._open()
        return self._review["now"]

    async def describe(self) -> dict[str, Any]:
        """The images, their answers, and the classes. Raises Refused (500) if they cannot be read."""
        return await run_in(self._answers, partial(_at_hand, self._describe))

    def _describe(self) -> dict[str, Any]:
        review = self._opened()
        images = [_describe_doubt(doubt, review) for doubt in review.doubts]
        confused = [
            {"classes": [first, second], "taken": taken, "images": of}
            for first, second, taken, of in review.confused
        ]
        return {"images": images, "classes": review.classes, "confused": confused} | self._answered()

    def _answered(self) -> dict[str, Any]:
        return {"answers": {str(number): label for number, label in self._opened().answers().items()}}

    async def answer(self, number: int, label: str, *, is_new: bool) -> dict[str, Any]:
        """Say what an image shows; all answers then. Raises Refused (404) for an image that is not there,
        and as `ReviewAnswers.answer`.
        """

        def work() -> dict[str, Any]:
            _doubt(review := self._opened(), number)
            review.key_of(number, label, is_new=is_new)  # its errors are for who asks
            _at_hand(partial(review.answer, number, label, is_new=is_new))
            return self._answered()

        return await run_in(self._answers, work)

    async def undo(self, number: int) -> dict[str, Any]:
        """Take the last answer for an image back; all answers then. Raises as `answer`."""

        def work() -> dict[str, Any]:
            _doubt(review := self._opened(), number)
            _at_hand(partial(review.undo, number))
            return self._answered()

        return await run_in(self._answers, work)

    async def picture(self, number: int) -> bytes:
        """An image as a JPEG. Raises Refused: 404 for one that is not there, 422 for one that is broken."""
        doubt = _doubt(await run_in(self._answers, self._opened), number)
        try:
            return await run_in(self._pictures, _make_jpeg, doubt.file)
        except DataError:  # the message names files of this machine
            raise Refused(422, "image", f"the image {doubt.name} cannot be read any more.") from None


def _doubt(review: ReviewAnswers, number: int) -> Doubt:
    if not 0 <= number < len(review.doubts):
        raise Refused(404, "not-found", f"there is no image {number} in this review.")
    return review.doubts[number]


def _at_hand(work: Callable[[], Result]) -> Result:
    """The result of work on files. Raises Refused (500) if they cannot be read."""
    try:
        return work()
    except DataError as error:  # the message names files of this machine
        logging.getLogger(__name__).error("%s", error)
        raise Refused(500, "server", "the data or its corrections cannot be read: see the log.") from None


def _describe_doubt(doubt: Doubt, review: ReviewAnswers) -> dict[str, Any]:
    return {
        "name": doubt.name,
        "label": doubt.label,
        "suggested": doubt.suggested,
        "probability": doubt.probability,
        "twin": review.number_of(doubt.twin),
    }


def _make_jpeg(file: Path) -> bytes:
    image, stream = as_image(decode(file, SIDE)), BytesIO()
    image.thumbnail((LONGEST, LONGEST))
    image.save(stream, "JPEG", quality=88)
    return stream.getvalue()


def review_of(bundle: Bundle, folder: Path | str, data: Path | None) -> ReviewDesk | None:
    """The review that a fit wrote into the folder of its bundle, of images in the data; None without one, or
    if it has found nothing.
    """
    place = expanded(folder)
    if data is None or not (read_issues(place) or bundle.training.confused):
        return None
    names = dict(zip(bundle.keys, bundle.classes, strict=True)) if bundle.keys else {}
    return ReviewDesk(partial(open_review, bundle, place, data, names))


def add_review(app: FastAPI, current: Callable[[], ReviewDesk | None]) -> None:
    """Add the routes of a review, which ``current`` gives, to an app."""

    def desk(request: Request) -> ReviewDesk:
        check_parameters(request)
        if (found := current()) is None:
            raise Refused(404, "not-found", NONE)
        return found

    @app.get("/api/review")
    async def review(request: Request) -> dict[str, Any]:
        """The images of which something looks wrong, what was said of them, and classes that are often
        confused. Needs --data.
        """
        return await desk(request).describe()

    @app.get("/api/review/image", response_class=Response)
    async def image(request: Request, number: int) -> Response:
        """One of these images, as a small JPEG."""
        headers = {"cache-control": "private, max-age=3600"}
        return Response(await desk(request).picture(number), media_type="image/jpeg", headers=headers)

    @app.post("/api/review/answer")
    async def answer(request: Request, number: int, label: str, new: bool = False) -> dict[str, Any]:
        """Say what one of these images shows: a class, keep, none, or remove for this file alone. A name that
        is no class gets 409, unless it is said to be new.
        """
        return await desk(request).answer(number, label, is_new=new)

    @app.post("/api/review/undo")
    async def undo(request: Request, number: int) -> dict[str, Any]:
        """Take the last answer for one of these images back."""
        return await desk(request).undo(number)


def create_review_app(review: ReviewAnswers, *, token: str, hosts: tuple[str, ...] | None) -> FastAPI:
    """The page of a review alone, for those who have the token, under these host names."""
    app: FastAPI = FastAPIOffline(redoc_url=None, title="dear review", version=__version__)
    desk = ReviewDesk(lambda: review)
    guard(app, Limits(), token, hosts)
    app.add_middleware(AnswerHead)
    add_review(app, lambda: desk)
    add_files(app, REVIEW_FILES | {"/": "review.html"})
    return app
