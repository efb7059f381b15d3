"""The page of `dear review --serve`: what can be refused is, before anything is computed."""

import os
import secrets
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from socket import socket
from types import TracebackType
from typing import Any, Self

from dear.cli.output import progress_console
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError, installation

HOST, TOKEN = "127.0.0.1", "DEAR_TOKEN"
TOKEN_BYTES = 16  # of one that is made up


class ReviewServer:
    """A server on this machine for the answers to a review of some data, from whose beginning its port is
    taken. Raises SettingsError without the extra or for a token that no header can hold, DataError for data
    that is no file, OutputError for a port that is taken.
    """

    def __init__(self, sources: Sequence[str], port: int, token: str | None) -> None:
        from dear.data.sources.corrections import corrections_file
        from dear.serving.server import check_token, listen

        if find_spec("fastapi") is None:
            raise SettingsError(f"serving needs fastapi: {installation('app')}.")
        self.sources, self.token = sources, token or os.environ.get(TOKEN) or secrets.token_hex(TOKEN_BYTES)
        self.is_made_up = self.token not in (token, os.environ.get(TOKEN))
        check_token(HOST, port, self.token)
        for source in sources:
            if corrections_file(source) is None:
                raise DataError(
                    f"--serve writes corrections beside the images, and {source} is neither a folder nor a "
                    "file: review it without --serve."
                )
        self.socket: socket = listen(HOST, port, self.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def run(self, issues: Sequence[Any], confused: Any, settings: DataSettings) -> int:
        """Serve until Ctrl-C; how many images have an answer then."""
        from dear.adapters.labels import CorrectedData
        from dear.adapters.review_answers import ReviewAnswers
        from dear.serving.review import create_review_app
        from dear.serving.server import run, trusted_hosts

        data = [CorrectedData.read(source, settings) for source in self.sources]
        review = ReviewAnswers(issues, data, confused, settings)
        app = create_review_app(review, token=self.token, hosts=trusted_hosts(HOST, None))
        hint = f"?token={self.token}" if self.is_made_up else "?token=..."
        text = f"review at http://{HOST}:{self.socket.getsockname()[1]}/{hint} (press Ctrl-C to stop)"
        run(app, self.socket, "", partial(progress_console().print, text, markup=False, soft_wrap=True))
        return len(review.answers())
