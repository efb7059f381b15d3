"""What the process of a server keeps: for its threads, and for its readers."""

import asyncio
import gc
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import dear
from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.serving.bodies import form_parts
from dear.serving.limits import Limits, Rate, Refused
from dear.serving.service import Service
from tests.unit.serving.small import small_predictor

# Eight threads, each with blocks as large as Pillow's; the first that is freed raises glibc's own threshold.
WORK = """
import ctypes, re, threading
from pathlib import Path
from dear.serving.memory import return_freed_memory
{call}
libc, arrived = ctypes.CDLL(None), threading.Barrier(8)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
def work():
    for _ in range(2):
        blocks = [libc.malloc(ctypes.c_size_t(2**24)) for _ in range(3)]
        last = libc.malloc(ctypes.c_size_t(1000))
        for block in blocks:
            ctypes.memset(block, 1, 2**24)
            libc.free(block)
        arrived.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
before = resident()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")
def test_large_blocks_return_to_the_system() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(dear.__file__).parents[1])}
    growth = [
        int(
            subprocess.check_output(
                [sys.executable, "-c", WORK.format(call=call)], env=environment, timeout=60
            )
        )
        for call in ("", "return_freed_memory()")
    ]
    assert growth[0] > 100  # MiB
    assert growth[1] < 20


def test_serve_sets_it_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    monkeypatch.setattr("dear.serving.memory.return_freed_memory", lambda: calls.append("memory"))
    monkeypatch.setattr("dear.adapters.bundle_config.check_bundle", lambda _: calls.append("bundle"))
    monkeypatch.setattr("dear.serving.server.require_app", lambda: sys.exit(5))
    with pytest.raises(SystemExit):
        main(["serve", "owner/bundle"])
    assert calls == ["memory", "bundle"]


def test_long_answers_about_a_bundle_are_work(small_clip: Clip) -> None:
    """A stranger's bundle may have 25,000 names of 1,000 characters, and each reader holds a copy."""
    pytest.importorskip("fastapi", reason="the extra `app` is not installed")
    from fastapi.testclient import TestClient

    from dear.serving.api import create_app

    predictor = small_predictor(small_clip)
    assert predictor.bundle.roles is not None
    forged = replace(predictor.bundle.roles, settings={"note": "a " * 150_000})
    predictor.bundle = replace(predictor.bundle, roles=forged)
    with TestClient(create_app(Service(predictor, Limits(rate=7))), base_url="http://127.0.0.1") as client:
        assert client.get("/api/info").status_code == 200
        answers = [client.get("/api/roles") for _ in range(4)]
        assert [answer.status_code for answer in answers[:2]] == [200, 200]
        assert answers[3].status_code == 429
        assert "units of work" in answers[3].json()["error"]
        assert client.get("/api/info").status_code == 200


def test_forms_leave_no_cycles() -> None:
    """A cycle keeps its files until garbage is collected, for which a server has little cause: 48 forms of
    10 MB left a gigabyte.
    """
    form = (
        b'--line\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
        b"content\r\n--line--\r\n"
    )
    kind = "multipart/form-data; boundary=line"
    gc.collect()
    gc.disable()
    try:
        assert form_parts(form, kind) == ([b"content"], {})
        assert gc.collect() == 0
        with pytest.raises(Refused):
            form_parts(form.replace(b"content\r\n--line", b"content\r\n--line\r\n\r\n--line"), kind)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_refused_images_of_a_batch_leave_no_cycles(small_clip: Clip) -> None:
    """Each refusal held the images of its request until garbage was collected."""
    pytest.importorskip("fastapi", reason="the extra `app` is not installed")
    from dear.serving.batch import batch_predictions
    from dear.serving.clients import Clients

    freed = list[str]()

    class Image(bytes):
        def __del__(self) -> None:
            freed.append("image")

    async def ask(count: int) -> None:
        clients, images = Clients(limits, Rate(0)), [Image(b"words") for _ in range(count)]
        with clients.request("a") as client:
            rows = await batch_predictions(service, client, images, ("a",), vocabulary, 1)
        assert [row["status"] for row in rows] == [415] * count

    limits = Limits(wait=0, rate=0)
    service = Service(small_predictor(small_clip), limits)
    vocabulary = service.vocabulary(tuple(service.predictor.classes))
    gc.collect()
    gc.disable()
    try:
        asyncio.run(ask(7))
        end = time.monotonic() + 10
        while len(freed) < 7 and time.monotonic() < end:  # the thread of the last one ends a moment later
            time.sleep(0.01)
        assert len(freed) == 7
    finally:
        gc.enable()
