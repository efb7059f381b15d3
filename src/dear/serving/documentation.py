"""What describes the API: its OpenAPI schema, and a page made from it that loads nothing from elsewhere.

FastAPI's own pages load scripts from a content delivery network.
"""

from html import escape
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
"""What the schema says of a request's body, which the routes read themselves, piece by piece."""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>API of dear</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css"></head><body class="docs"><main>
<header><h1>API</h1><p>{about}</p><p><a href="openapi.json">openapi.json</a></p></header>
{routes}</main></body></html>
"""


def add_documentation(app: FastAPI, token: bool) -> None:
    """Serve the schema at /openapi.json and the page at /docs, both made once; call it after all routes are
    added. ``token`` says whether one is asked for.
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
    """The page as HTML."""
    routes = [
        _route(method, path, one) for path, ways in schema["paths"].items() for method, one in ways.items()
    ]
    return PAGE.format(about=escape(schema["info"]["description"]), routes="\n".join(routes))


def _route(method: str, path: str, route: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th scope=row><code>{escape(one['name'])}</code></th><td>{_kind(one['schema'])}</td>"
        f"<td>{'required' if one.get('required') else _default(one['schema'])}</td></tr>"
        for one in route.get("parameters", ())
    )
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
        f"<p>{escape(' '.join(route.get('description', '').split()))}</p>{table}</section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    kinds = [one.get("type", "") for one in schema.get("anyOf", [schema])]
    return escape(" or ".join(kind for kind in kinds if kind != "null"))


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None else f"{escape(str(default).lower())} if not given"
