"""What a command line means, without running it."""

from collections.abc import Sequence
from typing import Any

from dear.cli.main import load_app, parse


def parse_arguments(words: Sequence[str]) -> dict[str, Any]:
    """The arguments of the command that words name. Raises for words that it does not take."""
    app = load_app(words)
    _, bound, _ = app.meta.parse_args([*words])
    command, arguments = parse(app, bound.args)
    assert "cli" in command.__module__, "help, and no command"
    return arguments.arguments
