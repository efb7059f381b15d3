"""The page for people, and what describes the API: its OpenAPI schema and a page made from it.

FastAPI's own pages of documentation load scripts from a content delivery network; these load nothing from
elsewhere.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from dear import __version__

ABOUT = (
    "A CLIP model, adapted with dear. Every POST takes an image as its body, or as the field image of a "
    "form; /api/batch takes several in a form. Refusals are JSON: error and kind. With a token, send "
    "Authorization: Bearer TOKEN (curl -H 'Authorization: Bearer TOKEN'). The answers are examples."
)
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
    "/table.js": ("table.js", "text/javascript; charset=utf-8"),
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
    commands = "".join(f"<pre>{escape(sample['source'])}</pre>" for sample in route.get("x-codeSamples", ()))
    return (
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
        f"<p>{escape(' '.join(route.get('description', '').split()))}</p>{table}{commands}"
        f"{_example(route)}</section>"
    )


def _example(route: dict[str, Any]) -> str:
    """The example of an answer, if there is one."""
    for content in route["responses"]["200"].get("content", {}).values():
        if (answer := content.get("example")) is not None:
            text = answer if isinstance(answer, str) else json.dumps(answer, indent=1, ensure_ascii=False)
            return f"<pre>{escape(text)}</pre>"
    return ""


def _kind(schema: dict[str, Any]) -> str:
    kinds = [choice.get("type", "") for choice in schema.get("anyOf", [schema])]
    return escape(" or ".join(kind for kind in kinds if kind != "null"))


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None else f"default {escape(str(default).lower())}"
