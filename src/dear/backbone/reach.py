"""Whether the hub answers at all, asked by Python alone: its client would retry for a minute."""

import http.client
import urllib.error
import urllib.request
from typing import Any

from huggingface_hub import constants

INTERIM = 10  # answers of the hub before its answer


def reach() -> None:
    """Raise URLError at once if the hub does not answer."""
    if constants.HF_HUB_OFFLINE:
        raise ConnectionError("HF_HUB_OFFLINE is set")
    try:
        opener = urllib.request.build_opener(_Http, _Https)
        opener.open(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        return  # the hub answers; let the client decide


class _Answer(http.client.HTTPResponse):
    """An answer after few others: Python waits while a server says `100 Continue`."""

    interim = 0

    def _read_status(self) -> Any:
        self.interim += 1
        if self.interim > INTERIM:
            raise http.client.HTTPException(f"the hub at {constants.ENDPOINT} answers `Continue` without end")
        return super()._read_status()  # type: ignore[misc]


class _Few(urllib.request.AbstractHTTPHandler):
    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        def connection(*args: Any, **kwargs: Any) -> Any:
            made = http_class(*args, **kwargs)
            made.response_class = _Answer
            return made

        return super().do_open(connection, req, **options)


class _Http(_Few, urllib.request.HTTPHandler):
    pass


class _Https(_Few, urllib.request.HTTPSHandler):
    pass
