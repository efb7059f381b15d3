"""Convert plain (YAML) values to the required types. All functions raise SettingsError naming the key."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from dear.errors import SettingsError, UnknownNameError
from dear.reading.typed import shown

SPOKEN = {bool: "true or false", int: "a whole number", str: "text", Path: "text"}


def known_keys(given: Mapping[Any, Any], keys: Sequence[str], kind: str) -> None:
    """Raise UnknownNameError for a key that is not among the known ones."""
    for key in given:
        if key not in keys:
            raise UnknownNameError(kind, str(key), keys)


def listed(value: Any) -> list[Any]:
    """Return a list unchanged, another value as a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def mapping(key: str, value: Any) -> dict[str, Any]:
    """A mapping of keys to values."""
    if not isinstance(value, Mapping):
        raise SettingsError(f"the key {key!r} is {shown(value)}: it must be a mapping of keys to values.")
    return dict(value)


def text(key: str, value: Any) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise SettingsError(f"the key {key!r} is {shown(value)}: it must be text that is not empty.")
    return value


def texts(key: str, value: Any) -> list[str]:
    """A text or a list of them."""
    return [text(key, one) for one in listed(value)]


def numbers(key: str, value: Any) -> tuple[int, ...]:
    """A whole number or a list of them."""
    found = listed(value)
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise SettingsError(
            f"the key {key!r} is {shown(value)}: it must be a whole number or a list of them."
        )
    return tuple(found)


def path_from(key: str, value: Any, folder: Path) -> Path:
    """A path relative to a folder; ``~`` is the home folder."""
    try:
        return folder / Path(text(key, value)).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"the key {key!r} is {shown(value)}: {error}") from error


def fitted(name: str, value: Any, kind: Any) -> Any:
    """Convert a setting's value to its annotated type. YAML reads 1e-3 as text and 1 as an integer."""
    kinds = [one for one in get_args(kind) if one is not NoneType] if NoneType in get_args(kind) else [kind]
    (wanted,) = kinds
    if value is None and wanted is not kind:
        return None
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            raise SettingsError(f"{name} is {shown(value)}: it must be one of {', '.join(get_args(wanted))}.")
        return value
    if wanted is float:
        return _number(name, value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise SettingsError(f"{name} is {shown(value)}: it must be {SPOKEN[wanted]}.")
    return value


def _number(name: str, value: Any) -> float:
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise SettingsError(f"{name} is {shown(value)}: it must be a number.")
    return found
