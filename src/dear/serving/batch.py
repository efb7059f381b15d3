"""Several images in one request: each is charged, decoded, computed and refused by itself, in turn with the
images of other requests.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from dear.adapters.predictor import Vocabulary
from dear.adapters.results import Candidate
from dear.errors import DearError
from dear.limits import LimitError
from dear.serving.clients import Client
from dear.serving.limits import Refused
from dear.serving.service import Service, Upload
from dear.serving.threads import in_thread, of_queue

Result = TypeVar("Result")
AT_ONCE = 4  # images of a request that are under way at a time


async def batch_predictions(
    service: Service,
    client: Client,
    images: Sequence[bytes],
    names: tuple[str, ...],
    vocabulary: Vocabulary | None,
    top: int,
) -> list[dict[str, Any]]:
    """For each image its best classes or its refusal, in order. At most ``limits.batch`` images of such
    requests go through the model at a time, and at most ``AT_ONCE`` of one are under way, so that a long one
    delays others by a few images.

    ``vocabulary`` is None if the names must be encoded first; that happens once, and only if an image can be
    read. Raises Refused (503), DataError and LimitError for names that cannot be encoded.
    """
    outcomes = await _features(service, client, images)
    features = [outcome for outcome in outcomes if isinstance(outcome, Tensor)]
    candidates = list[tuple[Candidate, ...]]()
    if vocabulary is None and features:
        candidates = await asyncio.wrap_future(
            service.classify_new(features, names, top, client=client.address)
        )
    by_image = iter(candidates)
    rows = list[dict[str, Any]]()
    for outcome in outcomes:
        if not isinstance(outcome, Tensor):
            rows.append(_refused(outcome))
        elif vocabulary is None:
            rows.append(_row(next(by_image)))
        else:
            async with client.computing(), client.scoring():
                known = await in_thread(partial(service.classify, outcome, vocabulary, top))
            rows.append(_row(known))
    return rows


async def decoded(service: Service, client: Client, data: bytes) -> Upload:
    """An image, decoded once it is the client's turn. Raises Refused."""
    async with client.decoding():
        return await in_thread(lambda: service.take(data, client.charge_picture))


async def _features(
    service: Service, client: Client, images: Sequence[bytes]
) -> list[Float[Tensor, "feature embed"] | DearError]:
    """The features of each image, or why it is refused. Once the client has no units of work left, the
    images after that are not looked at.
    """
    outcomes = dict[int, Tensor | DearError]()
    remaining = iter(enumerate(images))
    spent: Refused | None = None

    async def lane() -> None:
        nonlocal spent
        for number, data in remaining:
            if spent is not None:
                outcomes[number] = spent
                continue
            try:
                client.charge(float(number > 0))  # before it is opened: what is no image costs as much
                upload = await decoded(service, client, data)
                async with client.computing_batch(), client.computing():
                    features = await of_queue(service.features(upload))
                outcomes[number] = features
            except DearError as error:
                outcomes[number] = error.with_traceback(None)  # or a cycle would keep the images
                if isinstance(error, Refused) and error.status == 429:
                    spent = error

    async with asyncio.TaskGroup() as lanes:
        for _ in range(min(AT_ONCE, len(images))):
            lanes.create_task(lane())
    return [outcomes[number] for number in range(len(images))]


def refusal(error: DearError) -> tuple[int, dict[str, str], dict[str, str]]:
    """The status, body and headers of the answer to an error."""
    if isinstance(error, LimitError):
        error = Refused(413, str(error))
    if not isinstance(error, Refused):
        error = Refused(400, str(error))
    return error.status, {"error": str(error), "kind": error.kind}, error.headers


def _refused(error: DearError) -> dict[str, Any]:
    """The row of an image that is refused: the body of a refused request, the status and Retry-After."""
    status, body, headers = refusal(error)
    seconds = headers.get("Retry-After")
    return {**body, "status": status, **({} if seconds is None else {"retry_after": int(seconds)})}


def _row(candidates: Sequence[Candidate]) -> dict[str, Any]:
    return {"top": [asdict(candidate) for candidate in candidates]}


async def first_of(result: Awaitable[Result], gone: Awaitable[Any]) -> Result:
    """The result, which is cancelled if the client disconnects first: the request ends once that work has, as
    threads that are under way hold its images. Raises Refused.
    """
    computing, leaving = asyncio.ensure_future(result), asyncio.ensure_future(gone)
    try:
        await asyncio.wait((computing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not computing.done():
            computing.cancel()
            await asyncio.wait([computing])
            if computing.cancelled():
                raise Refused(400, "the client disconnected.")
        return computing.result()
    finally:
        computing.cancel()
        leaving.cancel()
