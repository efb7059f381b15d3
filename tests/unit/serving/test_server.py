"""Where a server listens, and what is refused before a backbone is loaded."""

import os
import signal
import threading
import time

import pytest

from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.errors import OutputError, SettingsError
from dear.serving.limits import Limits
from dear.serving.server import address, checked_origin, is_loopback, listen, run
from dear.serving.service import Service
from tests.unit.serving.small import small_predictor


def test_a_free_port_of_this_machine() -> None:
    with listen("127.0.0.1", 0, None) as opened:
        port = opened.getsockname()[1]
        assert address(opened, "127.0.0.1") == f"http://127.0.0.1:{port}/"
        with pytest.raises(OutputError, match=rf"127.0.0.1:{port} .*another program.*--port"):
            listen("127.0.0.1", port, None)


def test_a_port_in_use_is_told_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="the extra `app` is not installed")
    with listen("127.0.0.1", 0, None) as opened:
        port = opened.getsockname()[1]
        assert main(["serve", "owner/bundle", "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"127.0.0.1:{port}" in told


@pytest.mark.parametrize(
    ("host", "port", "token", "words"),
    [
        ("0.0.0.0", 0, None, "give a token"),
        ("127.0.0.1", 70_000, None, "between 0 and 65535"),
        ("127.0.0.1", 0, "a;b", "letters, digits"),
        ("127.evil.example", 0, None, "give a token"),
        ("127..0.0.1", 0, None, "give a token"),
        ("127..0.0.1", 0, "secret", "there is no host"),
    ],
)
def test_what_is_refused(host: str, port: int, token: str | None, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        listen(host, port, token)


def test_the_address_of_a_proxy() -> None:
    assert checked_origin("https://Clip.example:8443/") == "https://clip.example:8443"
    for wrong in ("clip.example", "ftp://clip.example", "https://clip.example/path", "https://", "null", ""):
        with pytest.raises(SettingsError, match=r"https://clip\.example, without a path"):
            checked_origin(wrong)


def test_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.8.8", "::1"]))
    assert not any(
        map(is_loopback, ["0.0.0.0", "192.168.0.127", "::", "localhost.example", "127.1", "127.lan"])
    )


def test_a_second_signal_changes_nothing() -> None:
    uvicorn = pytest.importorskip("uvicorn", reason="the extra `app` is not installed")
    from dear.serving.connection import Server

    server = Server(uvicorn.Config(lambda: None), lambda: None)
    for _ in range(2):
        server.handle_exit(signal.SIGINT, None)
    server.last_resort.cancel()
    assert server.should_exit
    assert not server.force_exit


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_to_be_told_to_stop_is_a_normal_end(small_clip: Clip, number: signal.Signals) -> None:
    pytest.importorskip("uvicorn", reason="the extra `app` is not installed")
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        while signal.getsignal(number) in (*before, signal.default_int_handler):  # until uvicorn listens
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    service = Service(small_predictor(small_clip), Limits())
    with listen("127.0.0.1", 0, None) as opened:
        threading.Thread(target=stop, daemon=True).start()
        told = list[str]()
        run(service, opened, host="127.0.0.1", token=None, page=False, ready=lambda: told.append("serving"))
    assert told == ["serving"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
