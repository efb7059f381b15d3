"""A hub that answers only that it will."""

import socket
from contextlib import nullcontext
from http.client import HTTPException
from threading import Thread

import pytest
from huggingface_hub import constants

from dear.backbone import hub


@pytest.mark.parametrize("interim", [0, 3, 1000])
def test_a_hub_that_only_says_continue(interim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's client skips such answers, however many there are."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * interim)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = Thread(target=serve)
        thread.start()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        expected = pytest.raises(HTTPException, match="without end") if interim == 1000 else nullcontext()
        with expected:
            hub.reach()
        thread.join()
