"""Check plain values against types: the one schema check for everything that is read.

It is ours and not msgspec because msgspec drops unknown keys silently, keeps the last of duplicate keys,
accepts half surrogates and NaN, and leaves the value and the choices out of its errors.
"""

import math
import reprlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)  # fmt: skip

from dear.errors import likely, listing
from dear.reading.files import ReadingError

MOST_FLOAT = sys.float_info.max
LONGEST_PATH = 4096  # characters, Linux's limit of bytes
LONGEST = 40  # characters of a text in a message
Fitted = TypeVar("Fitted")
WORDS: Mapping[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path",
    types.NoneType: "null",
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a number in an annotation: ``Annotated[int, Range(0)]``."""

    minimum: float = -math.inf
    maximum: float = math.inf

    def __str__(self) -> str:
        if self.maximum == math.inf:
            return f"of at least {self.minimum:g}"
        return f"from {self.minimum:g} to {self.maximum:g}"


Number = Annotated[float, Range(-3.4e38, 3.4e38)]
"""A number that float32 holds: sums, squares and margins of such numbers do not overflow."""
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]


def typed(value: Any, kind: Callable[..., Fitted], where: object, key: str = "") -> Fitted:
    """A plain value, checked against a type; dataclasses and tuples are built from dicts and lists.

    Unknown keys are kept in a TypedDict and refused in a dataclass. ``key`` names the value itself in
    messages. Raises ReadingError naming the key and the expected type.
    """
    try:
        fitted: Fitted = _fit(value, kind, key)
    except _Misfit as error:
        raise ReadingError(where, str(error)) from None
    return fitted


class _Misfit(Exception):
    """The problem with the value of a key; ``within`` unless the value itself is of a wrong type."""

    def __init__(self, key: str, words: str, *, within: bool = True) -> None:
        self.key, self.within = key, within
        super().__init__(f"{_subject(key)} {words}")


def shown(value: Any) -> str:
    """A value for a message: shortened, on one line."""
    if isinstance(value, str):
        return repr(value[:LONGEST] + ("..." if len(value) > LONGEST else ""))
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict = 2, 3, 3
    return short.repr(value)


def _fit(value: Any, kind: Any, key: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        return _in_range(_fit(value, inner[0], key), inner, key)
    if origin in (Union, types.UnionType):
        return _any_of(value, inner, key)
    if origin is Literal:
        if isinstance(value, str | int | bool | None) and any(
            value == choice and type(value) is type(choice) for choice in inner
        ):
            return value
        raise _misfit(value, kind, key)
    if is_dataclass(kind) or is_typeddict(kind):
        return _by_keys(value, kind, key)
    if (origin or kind) in (dict, Mapping):
        return _mapping(value, kind, inner[1] if inner else Any, key)
    if (origin or kind) in (list, tuple, Sequence):
        return _sequence(value, kind, inner, key)
    return _plain(value, kind, key)


def _plain(value: Any, kind: Any, key: str) -> Any:
    if kind is Path and isinstance(value, str) and value:
        if len(value) > LONGEST_PATH:
            raise _Misfit(key, f"has {len(value):,} characters: a path may have {LONGEST_PATH:,}")
        return Path(_plain(value, str, key))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < MOST_FLOAT else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _misfit(value, kind, key)
    if kind is float and not math.isfinite(value):
        raise _misfit(value, kind, key)
    if kind is str and not in_utf8(value):
        raise _Misfit(key, f"is {shown(value)}, which is not in UTF-8")
    return value


def in_utf8(text: str) -> bool:
    """False for a text with half a surrogate pair."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _mapping(value: Any, kind: Any, of: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise _misfit(value, kind, key)
    if odd := [name for name in value if not in_utf8(name)]:
        raise _Misfit(key, f"has the key {shown(odd[0])}, which is not in UTF-8")
    return {name: _fit(entry, of, _below(key, name)) for name, entry in value.items()}


def _sequence(value: Any, kind: Any, inner: tuple[Any, ...], key: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _misfit(value, kind, key)
    fixed = get_origin(kind) is tuple and inner[-1] is not ...
    if fixed and len(value) != len(inner):
        raise _Misfit(key, f"has {len(value)} values: it must have {len(inner)}")
    kinds = inner if fixed else (inner[0] if inner else Any,) * len(value)
    entries = [
        _fit(entry, kind, f"{key}[{index}]")
        for index, (entry, kind) in enumerate(zip(value, kinds, strict=True))
    ]
    return tuple(entries) if get_origin(kind) is tuple else entries


def _in_range(value: Any, inner: tuple[Any, ...], key: str) -> Any:
    for bounds in inner[1:]:
        if isinstance(bounds, Range) and not bounds.minimum <= value <= bounds.maximum:
            raise _misfit(value, Annotated[inner], key)
    return value


def _any_of(value: Any, kinds: tuple[Any, ...], key: str) -> Any:
    within: _Misfit | None = None
    for kind in kinds:
        try:
            return _fit(value, kind, key)
        except _Misfit as error:
            if error.within or error.key != key:  # more informative than that the value is not null either
                within = error
    raise within or _Misfit(key, f"is {shown(value)}: it must be {' or '.join(map(_in_words, kinds))}")


def _by_keys(value: Any, kind: Any, key: str) -> Any:
    """A TypedDict with its keys checked, or a dataclass built from its keys."""
    if not isinstance(value, dict):
        raise _misfit(value, kind, key)
    hints, required, closed = _keys(kind)
    if missing := [name for name in hints if name in required and name not in value]:
        raise _Misfit(key, f"lacks the key {missing[0]!r}")
    if unknown := [name for name in value if not isinstance(name, str) or (closed and name not in hints)]:
        hint = (
            f" (did you mean {nearest!r}?)" if (nearest := likely(str(unknown[0])[:LONGEST], hints)) else ""
        )
        raise _Misfit(
            key, f"has the unknown key {shown(unknown[0])}{hint}; known are {listing([*hints], 12)}"
        )
    fitted = {
        name: _fit(entry, hints[name], _below(key, name)) if name in hints else entry
        for name, entry in value.items()
    }
    return kind(**fitted) if closed else fitted


@cache
def _keys(kind: Any) -> tuple[dict[str, Any], frozenset[str], bool]:
    """The types of the keys, which keys are required, and whether others are refused: in a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {name: _required(hint) for name, hint in hints.items()}, kind.__required_keys__, False
    keys = [field for field in fields(kind) if field.init]
    bare = {key.name for key in keys if key.default is MISSING and key.default_factory is MISSING}
    return {key.name: hints[key.name] for key in keys}, frozenset(bare), True


def _required(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint


def _below(key: str, name: str) -> str:
    return f"{key}.{name[:40]}" if key else name[:40]


def _subject(key: str) -> str:
    return f"its {key}" if key else "it"


def _misfit(value: Any, kind: Any, key: str) -> _Misfit:
    return _Misfit(key, f"is {shown(value)}: it must be {_in_words(kind)}", within=False)


def _in_words(kind: Any) -> str:
    """A type in words: "a whole number of at least 0", "text or null", "a list"."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join([_in_words(inner[0]), *map(str, inner[1:])])
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if is_dataclass(kind) or is_typeddict(kind) or (origin or kind) in (dict, Mapping):
        return "keys and values"
    return WORDS.get(kind, "a list")
