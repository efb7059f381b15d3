"""What one client may have of a server beside others."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from dear.backbone.clip import Clip
from dear.serving.limits import Limits, Rate, Refused
from dear.serving.service import Service
from tests.unit.serving.small import picture, png, small_predictor
from tests.unit.serving.test_names import until

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from dear.serving.api import create_app
from dear.serving.clients import Clients
from tests.unit.serving.test_batch import Gate


@pytest.mark.parametrize(("rate", "most"), [(600, 14), (0, 16)])
def test_a_client_leaves_some_of_the_requests_in_progress(rate: int, most: int) -> None:
    """None of them if there is no rate."""
    clients = Clients(Limits(waiting=16, rate=rate), Rate(rate))
    held = [clients.request("a") for _ in range(most)]
    for request in held:
        request.__enter__()
    with pytest.raises(Refused, match="busy") as refused, clients.request("a"):
        pass
    assert refused.value.status == 503
    if most < 16:
        with clients.request("b"), clients.request("c"), pytest.raises(Refused, match="busy"):
            clients.require_room("d")
    held[0].__exit__(None, None, None)
    clients.require_room("a")
    clients.require_room("b")


def test_images_of_one_client_do_not_stand_before_those_of_another(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(small_predictor(small_clip), Limits(wait=0, batch=2, rate=0))
    gate, taken, take = Gate(service), list[bytes](), service.take
    monkeypatch.setattr(service, "take", lambda data, charge: (take(data, charge), taken.append(data))[0])
    app = create_app(service)

    def asking(address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)

    async def ask() -> None:
        image = png(picture())
        async with asking("127.0.0.2") as many, asking("127.0.0.3") as one:
            waiting = [asyncio.ensure_future(many.post("/api/predict", content=image)) for _ in range(40)]
            await until(lambda: gate.seen + service.batches.waiting == 4)  # twice a batch
            single = asyncio.ensure_future(one.post("/api/predict", content=image))
            await until(lambda: len(taken) == 41)
            gate.open.set()
            assert (await single).status_code == 200
            assert service.batches.items <= 12
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}

    asyncio.run(ask())


def test_maps_of_attention_of_one_client_wait_for_each_other(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not wait for the model in threads, where the images of others would stand behind them."""
    service = Service(small_predictor(small_clip), Limits(wait=0, rate=0))
    begun, go, attention = list[int](), threading.Event(), service.attention

    def blocked(*arguments: Any) -> Any:
        begun.append(1)
        assert go.wait(60)
        return attention(*arguments)

    monkeypatch.setattr(service, "attention", blocked)
    app = create_app(service)

    async def ask() -> None:
        image, transport = png(picture()), httpx.ASGITransport(app, client=("127.0.0.2", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            asked = "/api/attention?layer=1&head=0"
            waiting = [asyncio.ensure_future(client.post(asked, content=image)) for _ in range(50)]
            await until(lambda: bool(begun))
            assert (await client.post("/api/predict", content=image)).status_code == 200
            assert len(begun) == 1
            go.set()
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}

    asyncio.run(ask())
