"""What every server here has around its routes: the guard, files of pages, and errors as refusals."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from dear.data.sources.corrections import NewClassError
from dear.errors import DearError, OutputError, UnknownNameError, of_the_disk
from dear.limits import LimitError
from dear.serving.limits import Limits, Refused
from dear.serving.middleware import Guard, respond

STATIC = Path(__file__).with_name("static")
BUG = "internal server error, see the server's log; other requests may succeed."
UNWRITTEN = "the server cannot write its files: see its log."


def guard(
    app: FastAPI, limits: Limits, token: str | None, hosts: tuple[str, ...] | None, origin: str | None = None
) -> None:
    """Let only those ask who may (`Guard`), under these host names, None for any, and answer an error as a
    refusal.
    """
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.middleware("http")(Guard(limits, token, origin))

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        return respond(as_refused(error))

    for kind in (DearError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, refuse)


def add_files(app: FastAPI, files: Mapping[str, str]) -> None:
    """The files of a page, by their paths."""
    for path, name in files.items():
        app.add_route(path, partial(send_file, STATIC / name), include_in_schema=False)


async def send_file(file: Path, _: Request) -> FileResponse:
    """A file of the page, which browsers ask for anew when it has changed."""
    return FileResponse(file, headers={"cache-control": "no-cache"})


def check_parameters(request: Request) -> None:
    """Raise UnknownNameError for a parameter in the address that the route does not take."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise UnknownNameError("parameter", name, known)


def as_refused(error: Exception) -> Refused:
    """An error as a refusal, which says nothing of what is inside."""
    match error:
        case Refused():
            return error
        case LimitError():
            return Refused(413, "too-large", str(error))
        case OutputError():  # the message names a file of this machine
            logging.getLogger(__name__).error("%s", error)
            is_full = isinstance(error.__cause__, OSError) and of_the_disk(error.__cause__)
            return Refused(507 if is_full else 500, "server", UNWRITTEN)
        case OSError() if of_the_disk(error):
            return Refused(507, "server", UNWRITTEN)
        case NewClassError():
            return Refused(409, "new-class", str(error), nearest=error.nearest)
        case DearError():
            return Refused(400, "parameter", str(error))
        case RequestValidationError():
            faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
            return Refused(422, "parameter", f"{faults}.")
        case HTTPException():
            kind = "not-found" if error.status_code in (404, 405) else "parameter"
            return Refused(error.status_code, kind, f"{error.detail}.")
        case ClientDisconnect():
            return Refused(400, "parameter", "the client disconnected.")
    return Refused(500, "server", BUG)
