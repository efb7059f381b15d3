"""What the project itself runs from a checkout and the wheel does not ship: `python -m tools.NAME --help`."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

from dear.errors import DearError


def end_with(main: Callable[[], object]) -> None:
    """Run a tool and end the process: 2 and one line for an error that its user can fix."""
    try:
        main()
    except (DearError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def add_fields(parser: argparse.ArgumentParser, settings: type) -> None:
    """An option for each field of a dataclass."""
    hints = get_type_hints(settings)
    for field in fields(settings):
        option, kind = f"--{field.name.replace('_', '-')}", hints[field.name]
        if kind is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(option, type=kind, default=field.default, help=f"default {field.default}")


def fields_of(options: argparse.Namespace, settings: type) -> Any:
    """The dataclass that the options describe."""
    return settings(**{field.name: getattr(options, field.name) for field in fields(settings)})
