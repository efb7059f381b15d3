"""The options that a command line gives."""

from typing import Any

from dear.cli.main import load_app


def parse(*words: str) -> dict[str, Any]:
    """The arguments that a command line of `dear` gives to its command."""
    _, bound, _ = load_app(words).parse_args(words, print_error=False, exit_on_error=False)
    bound.apply_defaults()
    return dict(bound.arguments)
