"""The page: a few files of this package, each at a fixed path; all it shows comes from the API."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

STATIC = Path(__file__).with_name("static")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def add_page(app: FastAPI) -> None:
    """Serve the files, read once at start: no path leads to the disk."""
    for address, (name, kind) in FILES.items():
        _add(app, address, (STATIC / name).read_bytes(), kind)


def _add(app: FastAPI, address: str, content: bytes, kind: str) -> None:
    async def file() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    app.add_api_route(address, file, methods=["GET", "HEAD"], include_in_schema=False)
