"""New class names in requests: they hold up nothing else, and what they cost and leave behind is bounded."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pytest

from dear.adapters import predictor as predictor_module
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.limits import LimitError, limit
from dear.serving.clients import Client
from dear.serving.limits import Limits, Rate
from dear.serving.service import PROMPTS, Service
from tests.unit.adapters.test_bundle import fitted
from tests.unit.serving.small import bomb, picture, png, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
import httpx

from dear.serving.api import create_app, words

LONG = 60.0
POOL = 40  # threads of the framework, in which pictures are decoded


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


@asynccontextmanager
async def client_of(service: Service, address: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(service), client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=LONG) as client:
        yield client


def predict(client: httpx.AsyncClient, names: str = "") -> Awaitable[httpx.Response]:
    data = {"classes": names} if names else {}
    return client.post("/api/predict", files={"image": png(picture())}, data=data)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():
            await asyncio.sleep(0.01)


class Blocked:
    """A text encoder that begins, and goes on once ``go`` is set."""

    def __init__(self, predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self.encoded = threading.Event(), threading.Event(), list[tuple[str, ...]]()
        kind = type(predictor.method)
        encode = kind.set_classes

        def blocked(method: Any, names: Sequence[str], templates: Sequence[str]) -> None:
            self.begun.set()
            assert self.go.wait(LONG)
            self.encoded.append(tuple(names))
            encode(method, names, templates)

        monkeypatch.setattr(kind, "set_classes", blocked)


def test_names_that_are_encoded_hold_up_nothing_else(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the bundle's classes, nor others that are known already, nor the threads that decode."""
    predictor.vocabulary(["sea", "tree"])
    encoder = Blocked(predictor, monkeypatch)
    service = Service(predictor, Limits(wait=0, rate=0))

    async def attack() -> None:
        async with client_of(service) as client:
            flood = [asyncio.ensure_future(predict(client, f"new {n}, other")) for n in range(POOL + 3)]
            await until(encoder.begun.is_set)
            async with asyncio.timeout(LONG):
                for names in ("", "sea, tree"):
                    for _ in range(3):
                        assert (await predict(client, names)).status_code == 200
            assert not encoder.encoded
            encoder.go.set()
            assert [answer.status_code for answer in await asyncio.gather(*flood)] == [200] * len(flood)

    asyncio.run(attack())
    assert len(encoder.encoded) == POOL + 3


def test_a_long_list_holds_up_a_short_one_for_a_few_prompts(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its answer is the same to the last digit as without the other."""
    names = [f"new {number}" for number in range(100)]
    other = Service(Predictor(predictor.bundle, clip=predictor.clip), Limits(wait=0, rate=0))
    service = Service(predictor, Limits(wait=0, rate=0))
    encoder = Blocked(predictor, monkeypatch)

    async def attack() -> None:
        async with client_of(service) as client:
            long = asyncio.ensure_future(predict(client, ",".join(names)))
            await until(encoder.begun.is_set)
            short = asyncio.ensure_future(predict(client, "short"))
            await until(lambda: len(service._names._tasks) == 2)
            encoder.go.set()
            assert (await short).status_code == 200
            answer = await long
        assert encoder.encoded[1] == ("short",)
        assert max(map(len, encoder.encoded)) == PROMPTS
        async with client_of(other) as client:
            assert (await predict(client, ",".join(names))).json() == answer.json()

    asyncio.run(attack())


def test_never_all_places_wait_for_names(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Blocked(predictor, monkeypatch)
    service = Service(predictor, Limits(waiting=7, wait=0, rate=0))

    async def attack() -> None:
        async with client_of(service) as client:
            flood = [asyncio.ensure_future(predict(client, f"new {n}")) for n in range(7)]
            await until(lambda: sum(task.done() for task in flood) == 4)
            assert (await predict(client)).status_code == 200
            encoder.go.set()
            codes = sorted(answer.status_code for answer in await asyncio.gather(*flood))
            assert codes == [200] * 3 + [503] * 4

    asyncio.run(attack())


def test_names_of_a_client_that_left_are_not_encoded(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Blocked(predictor, monkeypatch)
    service = Service(predictor, Limits(wait=0))
    app = create_app(service)
    left, [boundary, body] = asyncio.Event(), _form("gone")

    async def attack() -> None:
        messages = iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            for message in messages:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            pass

        headers = [(b"host", b"localhost"), (b"content-type", boundary)]
        scope = {"type": "http", "method": "POST", "path": "/api/predict", "headers": headers}
        scope |= {"query_string": b"", "client": ("127.0.0.1", 1), "http_version": "1.1"}
        async with client_of(service) as client:
            first = asyncio.ensure_future(predict(client, "first"))
            await until(encoder.begun.is_set)
            gone = asyncio.ensure_future(app(scope, receive, send))  # type: ignore[arg-type]
            await until(lambda: len(service._names._tasks) == 2)
            left.set()
            async with asyncio.timeout(LONG):
                await gone
            encoder.go.set()
            assert (await first).status_code == 200
            assert (await predict(client, "last")).status_code == 200

    asyncio.run(attack())
    assert encoder.encoded == [("first",), ("last",)]


def _form(names: str) -> tuple[bytes, bytes]:
    request = httpx.Request(
        "POST", "http://localhost", files={"image": png(picture())}, data={"classes": names}
    )
    return request.headers["content-type"].encode(), request.read()


def test_what_is_kept_for_names_is_bounded_in_bytes(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And holds the text features only, not the prompts that they were computed from."""
    width = predictor.vocabulary(["sea"]).text.nbytes
    monkeypatch.setattr(predictor_module, "CACHE", 5 * width)
    for number in range(31):
        vocabulary = predictor.vocabulary([f"name {number}", f"other {number}"])
        assert vocabulary.method is predictor.method
        assert predictor.cached_bytes == sum(one.nbytes for one in predictor._vocabularies.values())
        assert predictor.cached_bytes <= 5 * width
    assert predictor.cached_vocabulary(("name 30", "other 30")) is vocabulary
    assert predictor.cached_vocabulary(("name 0", "other 0")) is None
    predictor.vocabulary([f"name {number}" for number in range(11)])  # larger than all that may be kept
    assert predictor.cached_bytes == 0


@dataclass
class Neighbour:
    path: str
    copies: tuple[str, ...] = ()
    more_copies: int = 0
    sha256: str = ""


def test_names_and_pixels_and_thumbnails_are_work(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(predictor, Limits(rate=100, wait=0, upload=1))

    async def ask() -> None:
        async with client_of(service) as client:
            # 1 for the request, 60 for 6,000 characters of new names: under half a bucket is left.
            names = ",".join(f"{number:03d} name of a number" for number in range(300))
            assert (await predict(client, names)).status_code == 200
            refused = await predict(client, names.replace("name", "game"))
            assert refused.status_code == 429
            assert "ten new class names" in refused.json()["error"]
            assert (await predict(client, names)).status_code == 200  # they are known now
            codes = [
                (await client.post("/api/predict", content=bomb(width, 1000))).status_code
                for width in (4000, 39_000)  # of 4 and of 39 megapixels
            ]
            assert codes == [200, 429]
            monkeypatch.setattr(service, "neighbours", lambda *_: [Neighbour("a.png")] * 41)
            monkeypatch.setattr(service, "thumbnail", lambda *_: pytest.fail("it was decoded"))
            assert (await client.post("/api/neighbours", content=png(picture()))).status_code == 200
            thumbnails = await client.post("/api/neighbours?thumbnails=true", content=png(picture()))
            assert thumbnails.status_code == 429
            assert (await predict(client)).status_code == 200

    asyncio.run(ask())


def test_names_of_a_method_that_encodes_them_for_each_image(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CoCoOp's 1,000 names would be one step of some 19 s on ViT-B/16, and each image would cost one unit."""
    texts = {"classes": ("sea", "sky", "sun"), "templates": ("a photo of a {}",)}
    bundle = replace(fitted("cocoop", small_clip)[0], **texts)
    service, charged = Service(Predictor(bundle, clip=small_clip), Limits(wait=0)), list[float]()
    monkeypatch.setattr(Client, "charge", lambda _, work: charged.append(work))

    async def ask() -> None:
        async with client_of(service) as client:
            refused = await predict(client, ",".join(f"n{number}" for number in range(101)))
            assert refused.status_code == 413
            assert "101 class names in one request, encoded anew for each image" in refused.json()["error"]
            charged.clear()
            for names, cost in (("a,b", 0.2), ("a,b", 0.2), ("", 0.3)):  # ten characters a name
                data = {"classes": names} if names else {}
                files = [("image", png(picture()))] * 7
                answer = await client.post("/api/batch", files=files, data=data)
                assert answer.status_code == 200, answer.text
                assert sum(charged) == pytest.approx(7 * cost + 6)  # a unit for each image after the first
                charged.clear()

    asyncio.run(ask())


def test_a_bucket_of_work() -> None:
    now = [0.0]
    rate = Rate(10, lambda: now[0])
    rate.take("a", 4)
    rate.take("a", 1000)  # half a bucket is enough, and a minute's units are all that it costs
    now[0] = 24.0
    with pytest.raises(Exception, match="try again in 6 s"):
        rate.take("a")
    now[0] = 30.1
    rate.take("a")


def test_a_long_list_is_refused_before_it_is_split() -> None:
    class Text(str):
        def split(self, *_: Any) -> NoReturn:  # type: ignore[override]
            pytest.fail("it was split")

    with pytest.raises(LimitError, match=r"5,000,000 characters of a list.*DEAR_LIMIT_REQUEST_TEXT"):
        words(Text("," * 5_000_000))
    assert words("a, b,," + " " * (limit("request_text") - 6)) == ["a", "b"]
