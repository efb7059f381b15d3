"""Requests to the server: forms of one image and of several, class names, and the headers."""

import io
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from PIL import Image

from dear.errors import DearError
from dear.reading.files import read_bytes
from dear.serving.api import create_app
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.fuzz.readers.target import clip, written
from tests.unit.serving.small import small_predictor

FORM = {"content-type": "multipart/form-data; boundary=line"}


@cache
def client() -> TestClient:
    service = Service(small_predictor(clip()), Limits(upload=64, bodies=512, rate=0, wait=0))
    return TestClient(create_app(service, token="s3cret"), base_url="http://127.0.0.1")


def _png() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (7, 5)).save(stream, "PNG")
    return stream.getvalue()


def _part(name: str, content: bytes, filename: str = "") -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    return (
        f'--line\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    )


def form(folder: Path) -> Path:
    parts = _part("classes", b"red house, blue tree") + _part("image", _png(), "photo.png")
    return written(folder / "form", parts + b"--line--\r\n")


def batch(folder: Path) -> Path:
    parts = _part("image", _png(), "a.png") + _part("classes", b"red house") + _part("image", _png(), "b.png")
    return written(folder / "batch", parts + b"--line--\r\n")


def names(folder: Path) -> Path:
    return written(folder / "names", "red house, blue tree,\nthe sea")


def headers(folder: Path) -> Path:
    cookies = r'other="\\"; dear_token=s3cret'
    return written(folder / "headers", f"127.0.0.1:7860\n{cookies}\nhttp://127.0.0.1:7860")


def send_form(file: Path) -> None:
    _post("/api/predict", content=read_bytes(file), headers=FORM)


def send_batch(file: Path) -> None:
    """Raises DearError if none of its images has an answer."""
    answer = _post("/api/batch", content=read_bytes(file), headers=FORM)
    results = answer.json()["results"]
    if not any("top" in result for result in results):
        raise DearError(results[0]["error"])


def send_names(file: Path) -> None:
    body = _part("classes", read_bytes(file)) + _part("image", _png(), "photo.png")
    _post("/api/predict", content=body + b"--line--\r\n", headers=FORM)


def send_headers(file: Path) -> None:
    """Its lines as Host, Cookie and Origin, of a length that the HTTP parser would let through."""
    lines = read_bytes(file)[: 2**16].replace(b"\r", b"").split(b"\n")
    named = dict(zip((b"host", b"cookie", b"origin"), lines, strict=False))
    _answered(client().get("/api/info", headers=[*named.items()]))


def _post(path: str, headers: dict[str, str], content: bytes) -> Any:
    token = {"authorization": "Bearer s3cret"}
    return _answered(client().post(path, content=content, headers=headers | token))


def _answered(answer: Any) -> Any:
    """Raises DearError for a refusal; a server's error has been raised by the client."""
    if answer.status_code != 200:
        raise DearError(answer.json()["error"])
    return answer
