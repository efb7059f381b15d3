"""Thumbnails of an index: what they may take, and whose turn it is."""

import asyncio
import hashlib
import threading
from pathlib import Path

import pytest

from dear.backbone.clip import Clip
from dear.data.images.decode import decode
from dear.serving.limits import Limits
from dear.serving.service import Service
from dear.serving.thumbnails import Thumbnails
from tests.unit.serving.small import bomb, picture, png, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from dear.serving.clients import Clients
from dear.serving.limits import Rate
from tests.unit.serving.test_leaving import Leaver
from tests.unit.serving.test_names import LONG, Neighbour, until


def saved(path: Path, content: bytes) -> tuple[Path, str]:
    path.write_bytes(content)
    return path, hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("limits", "content"),
    [
        (Limits(megapixels=3.9), bomb(4000, 1000)),
        (Limits(upload=1 / 64), png(picture(width=131, height=113))),
    ],
)
def test_a_picture_that_is_larger_than_an_upload_has_no_thumbnail(
    limits: Limits, content: bytes, tmp_path: Path
) -> None:
    """Two honest pictures of 120 megapixels took 2.5 GB, and others waited up to 47 s for them."""
    large, small = saved(tmp_path / "large.png", content), saved(tmp_path / "small.png", png(picture()))
    thumbnails = Thumbnails(limits)
    assert thumbnails.of(*large) is None
    assert thumbnails.of(*small) is not None
    assert Thumbnails(Limits(megapixels=4)).of(*large) is not None


def test_a_file_that_is_larger_than_an_upload_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = saved(tmp_path / "large.png", png(picture(width=131, height=113)))
    monkeypatch.setattr("dear.serving.thumbnails.read_image", lambda _: pytest.fail("it was read"))
    assert Thumbnails(Limits(upload=1 / 64)).of(*large) is None


def test_a_thumbnail_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sha256 = saved(tmp_path / "a.png", png(picture()))
    thumbnails = Thumbnails(Limits())
    first = thumbnails.of(path, sha256)
    assert first is not None
    monkeypatch.setattr("dear.serving.thumbnails.decode", lambda *_: pytest.fail("it was decoded again"))
    assert thumbnails.of(path, sha256) == first
    path.write_bytes(png(picture(1)))
    assert thumbnails.of(path, sha256) is None  # it was changed
    path.unlink()
    assert thumbnails.of(path, sha256) is None


def test_the_thumbnails_in_memory_have_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [saved(tmp_path / f"{seed}.png", png(picture(seed))) for seed in range(3)]
    size, made = len(Thumbnails(Limits()).of(*files[0]) or b""), list[str]()
    monkeypatch.setattr(
        "dear.serving.thumbnails.decode",
        lambda path, *others: made.append(path.name) or decode(path, *others),
    )
    thumbnails = Thumbnails(Limits(), room=2 * size + size // 2)
    for number in (0, 1, 0, 2, 0, 1):  # 2 takes the room of 1, which was asked for before 0
        thumbnails.of(*files[number])
    assert made == ["0.png", "1.png", "2.png", "1.png"]
    assert size < thumbnails.size <= thumbnails.room
    nothing = Thumbnails(Limits(), room=1)
    assert nothing.of(*files[0]) is not None
    assert nothing.size == 0


@pytest.mark.parametrize("decoders", [2, 3])
def test_thumbnails_leave_a_place_for_uploads(
    decoders: int, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others waited for the pictures of an index in both places."""
    service = Service(small_predictor(small_clip), Limits(wait=0, rate=0, decoders=decoders))
    started, go = list[str](), threading.Event()

    def thumbnail(name: str, *_: object) -> None:
        started.append(name)
        assert go.wait(LONG)

    monkeypatch.setattr(service, "thumbnail", thumbnail)
    monkeypatch.setattr(service, "neighbours", lambda *_: [Neighbour(f"{n}.png") for n in range(5)])

    async def test() -> None:
        server = Leaver(service, monkeypatch)
        at_once = decoders - 1
        asking = [
            server.ask("neighbours", "thumbnails=true", [png(picture())], f"127.0.0.{n}") for n in (2, 3, 4)
        ]
        await until(lambda: len(server.clients.decoding_thumbnails._waiting) == 6 - at_once)
        assert len(started) == at_once
        await server.ask("predict", "", [png(picture())], "127.0.0.9")
        assert len(started) == at_once
        go.set()
        await asyncio.gather(*asking)
        assert len(started) == 15

    asyncio.run(test())


def test_a_single_decoder_makes_thumbnails_too() -> None:
    async def make_one() -> None:
        async with Clients(Limits(decoders=1), Rate(0)).decoding_thumbnails.place("127.0.0.2"):
            pass

    asyncio.run(asyncio.wait_for(make_one(), LONG))


def test_thumbnails_of_a_client_do_not_come_one_for_one_with_others(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would wait for a large picture of a client that asks for many."""
    service = Service(small_predictor(small_clip), Limits(wait=0, rate=0))
    order, go, hits = list[str](), threading.Event(), iter("ab")

    def thumbnail(name: str, *_: object) -> None:
        order.append(name[0])
        assert go.wait(LONG)

    def neighbours(*_: object) -> list[Neighbour]:
        client = next(hits)
        return [Neighbour(f"{client}{number}") for number in range(4)]

    monkeypatch.setattr(service, "thumbnail", thumbnail)
    monkeypatch.setattr(service, "neighbours", neighbours)

    async def test() -> None:
        server = Leaver(service, monkeypatch)
        waiting = server.clients.decoding_thumbnails
        first = server.ask("neighbours", "thumbnails=true", [png(picture())], "127.0.0.2")
        await until(lambda: len(order) == 1 and len(waiting._waiting) == 1)
        # It has had the place for long, whatever the clock says.
        waiting._clients["127.0.0.2"].seconds = 1e6
        second = server.ask("neighbours", "thumbnails=true", [png(picture())], "127.0.0.3")
        await until(lambda: len(waiting._waiting) == 3)
        go.set()
        await asyncio.gather(first, second)

    asyncio.run(test())
    assert order == [*"abbbbaaa"]
