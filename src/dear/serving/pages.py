"""The page for people, and what describes the API: its OpenAPI schema and a page made from it.

FastAPI's own pages of documentation load scripts from a content delivery network; these load nothing from
elsewhere.
"""

from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from dear import __version__

ABOUT = (
    "A CLIP model, adapted with dear. Every POST takes an image as its body, or as the field image of a "
    "form. Refusals are JSON: error and kind. With a token, send Authorization: Bearer TOKEN."
)
IMAGE = {"type": "string", "format": "binary"}
TAKES_IMAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": IMAGE},
            "multipart/form-data": {
                "schema": {"type": "object", "required": ["image"], "properties": {"image": IMAGE}}
            },
        },
    }
}
"""The schema of a request's body, which the routes read themselves, piece by piece."""
DOCUMENTATION = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>API of dear</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css"></head><body class="docs"><main>
<header><h1>API</h1><p>{about}</p><p><a href="openapi.json">openapi.json</a></p></header>
{routes}</main></body></html>
"""


STATIC = Path(__file__).with_name("static")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def add_page(app: FastAPI) -> None:
    """Serve the files of the page, read once at start: no path leads to the disk."""
    for address, (name, kind) in FILES.items():
        _add_file(app, address, (STATIC / name).read_bytes(), kind)


def _add_file(app: FastAPI, address: str, content: bytes, kind: str) -> None:
    async def file() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    app.add_api_route(address, file, methods=["GET", "HEAD"], include_in_schema=False)


def add_documentation(app: FastAPI, token: bool) -> None:
    """Serve the schema at /openapi.json and a page of it at /docs, both made once: call it after all routes
    are added. ``token`` is true if clients must send one.
    """
    app.title, app.version, app.description = "dear", __version__, ABOUT
    schema = app.openapi()
    if token:
        schema["components"] = {
            **schema.get("components", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        }
        schema["security"] = [{"token": []}]
    page = documentation_page(schema)

    async def openapi() -> Response:
        return JSONResponse(schema)

    async def docs() -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    for address, answer in (("/openapi.json", openapi), ("/docs", docs)):
        app.add_api_route(address, answer, methods=["GET"], include_in_schema=False)


def documentation_page(schema: dict[str, Any]) -> str:
    """The page of a schema, as HTML."""
    routes = [
        _route(method, path, route)
        for path, routes_of_path in schema["paths"].items()
        for method, route in routes_of_path.items()
    ]
    return DOCUMENTATION.format(about=escape(schema["info"]["description"]), routes="\n".join(routes))


def _route(method: str, path: str, route: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th scope=row><code>{escape(option['name'])}</code></th><td>{_kind(option['schema'])}</td>"
        f"<td>{'required' if option.get('required') else _default(option['schema'])}</td></tr>"
        for option in route.get("parameters", ())
    )
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
        f"<p>{escape(' '.join(route.get('description', '').split()))}</p>{table}</section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    kinds = [choice.get("type", "") for choice in schema.get("anyOf", [schema])]
    return escape(" or ".join(kind for kind in kinds if kind != "null"))


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None else f"default {escape(str(default).lower())}"
