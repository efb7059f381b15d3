"""Check plain values against types: the one schema check for everything that is read, and for the settings
that a user gives as a mapping.

Pydantic was tried, strict and with unknown keys forbidden. On Python 3.11 it takes no TypedDict of typing,
and nowhere text that is not valid Unicode, as names of files may be. Its errors do not say what else a union
or a key could be, so a walk over the types would remain. The errors of msgspec lack the value, the choices
and the key of a mapping.
"""

import math
import os
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar, Union, get_args, get_origin

from dear.errors import SettingsError
from dear.reading.files import ReadingError
from dear.text import likely, list_names

LONGEST = 40  # characters of a text in a message
LARGEST = 10**9
"""Largest number of a setting: what is computed from it stays within float32 and 64-bit integers."""
Fitted = TypeVar("Fitted")
WORDS: Mapping[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path",
    types.NoneType: "null", list: "a list", tuple: "a list", Sequence: "a list",
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """Bounds of a number in an annotation, as in ``Annotated[int, Range(0)]``. They are inclusive; with
    ``above`` the minimum itself is excluded, and with ``below`` the maximum.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = field(default=False, kw_only=True)
    below: bool = field(default=False, kw_only=True)

    def allows(self, value: float) -> bool:
        """True if the number is within the bounds; NaN never is."""
        if (self.above and value == self.minimum) or (self.below and value == self.maximum):
            return False
        return self.minimum <= value <= self.maximum

    def __str__(self) -> str:
        least, most = f"{self.minimum:,}", f"{self.maximum:,}"
        if self.maximum == math.inf:
            return f"above {least}" if self.above else f"of at least {least}"
        if not self.above and not self.below:
            return f"from {least} to {most}"
        least = f"above {least}" if self.above else f"of at least {least}"
        return f"{least} and below {most}" if self.below else f"{least} and at most {most}"


@dataclass(frozen=True)
class Form:
    """What a text in an annotation must be: in words that follow "text", and as a function."""

    words: str
    allows: Callable[[str], bool]

    def __str__(self) -> str:
        return self.words


Number = Annotated[float, Range(-3.4e38, 3.4e38)]
"""A number that float32 holds: sums, squares and margins of such numbers do not overflow."""
Share = Annotated[float, Range(0, 1)]
PositiveInt = Annotated[int, Range(1, LARGEST)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
"""What torch's generators accept, and records hold."""
NonNegativeInt = Annotated[int, Range(0, LARGEST)]
PositiveFloat = Annotated[float, Range(0, LARGEST, above=True)]
NonNegativeFloat = Annotated[float, Range(0, LARGEST)]


def typed(value: Any, kind: Callable[..., Fitted], where: object, key: str = "") -> Fitted:
    """A plain value, checked against a type; dataclasses and tuples are built from dicts and lists.

    Unknown keys are kept in a TypedDict and refused in a dataclass and in a mapping of keys to types. Of a
    mapping no key is required, and null is accepted. ``key`` names the value itself in messages. Raises
    ReadingError naming the key and the expected type.
    """
    try:
        fitted: Fitted = _fit(value, kind, key)
    except _Misfit as error:
        raise ReadingError(where, str(error)) from None
    return fitted


def shown(value: Any) -> str:
    """A value for a message: shortened, on one line."""
    if isinstance(value, str):
        return repr(value[:LONGEST] + ("..." if len(value) > LONGEST else ""))
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict = 2, 3, 3
    return short.repr(value)


class _Misfit(Exception):
    """The problem with the value of a key; ``is_kind`` if that value itself is of another kind."""

    def __init__(self, key: str, problem: str, *, is_kind: bool = False) -> None:
        self.key, self.problem, self.is_kind = key, problem, is_kind
        super().__init__(f"{f'its {key}' if key else 'it'} {problem}")


def _fit(value: Any, kind: Any, key: str) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        try:
            fitted = _fit(value, inner[0], key)
        except _Misfit as error:
            if not error.is_kind or error.key != key:  # says more than that the value is of another kind
                raise
        else:
            if all(bound.allows(fitted) for bound in inner[1:]):
                return fitted
    elif origin in (Union, types.UnionType):
        for choice in inner:
            try:
                return _fit(value, choice, key)
            except _Misfit as error:
                if not error.is_kind or error.key != key:  # as above
                    raise
    elif origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in inner):
            return value
    elif is_dataclass(kind) or typing.is_typeddict(kind) or isinstance(kind, Mapping):
        if isinstance(value, dict):
            return _fit_keys(value, kind, key)
        if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, kind):
            return value
        if value is None and isinstance(kind, Mapping):
            return None
    elif origin in (dict, Mapping):
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {
                name: _fit(entry, (inner or [Any])[-1], _below(key, name)) for name, entry in value.items()
            }
    elif origin in (list, tuple, Sequence):
        if isinstance(value, list | tuple):
            return _fit_list(value, origin, inner or (Any,), key)
    elif kind is float:
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
    elif kind is int:
        if type(value) is int and abs(value) < 2**63:
            return value
    elif kind is Path:
        if isinstance(value, str | Path) and value != "":
            return Path(value)
    elif isinstance(value, kind):
        return value
    raise _Misfit(key, f"is {shown(value)}: it must be {_in_words(kind)}", is_kind=True)


def _fit_list(value: Sequence[Any], origin: Any, inner: tuple[Any, ...], key: str) -> Any:
    kinds = inner[:1] * len(value)
    if origin is tuple and inner[-1] is not ...:
        kinds = inner
    if len(value) != len(kinds):
        raise _Misfit(key, f"has {len(value)} values: it must have {len(kinds)}")
    entries = [_fit(entry, of, f"{key}[{n}]") for n, (entry, of) in enumerate(zip(value, kinds, strict=True))]
    return tuple(entries) if origin is tuple else entries


def _fit_keys(value: dict[Any, Any], kind: Any, key: str) -> Any:
    """A dict with its keys checked, or a dataclass built from them."""
    hints, required = (kind, frozenset[str]()) if isinstance(kind, Mapping) else _keys(kind)
    if missing := [name for name in hints if name in required and name not in value]:
        raise _Misfit(key, f"lacks the key {missing[0]!r}")
    closed = not typing.is_typeddict(kind)
    if unknown := [name for name in value if not isinstance(name, str) or (closed and name not in hints)]:
        nearest = likely(str(unknown[0])[:LONGEST], hints)
        hint = f" (did you mean {nearest!r}?)" if nearest else ""
        known = list_names([*hints], 12)
        raise _Misfit(key, f"has the unknown key {shown(unknown[0])}{hint}; known are {known}")
    fitted = {name: _fit(entry, hints.get(name, Any), _below(key, name)) for name, entry in value.items()}
    return kind(**fitted) if is_dataclass(kind) else fitted  # type: ignore[operator]


@cache
def _keys(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of the keys, and which keys are required."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        marks = (Required, NotRequired)
        bare = {
            name: get_args(hint)[0] if get_origin(hint) in marks else hint for name, hint in hints.items()
        }
        return bare, kind.__required_keys__
    keys = [key for key in fields(kind) if key.init]
    required = [key.name for key in keys if key.default is MISSING and key.default_factory is MISSING]
    return {key.name: hints[key.name] for key in keys}, frozenset(required)


def _below(key: str, name: str) -> str:
    return f"{key}.{name[:40]}" if key else name[:40]


def _in_words(kind: Any) -> str:
    """A type in words: "a whole number of at least 0", "text or null", "a list"."""
    if isinstance(kind, Mapping):
        return "keys and values"
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join([_in_words(inner[0]), *map(str, inner[1:])])
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    return WORDS.get(origin or kind, "keys and values")


def check_overrides(values: Mapping[str, Any], kind: type, what: str) -> dict[str, Any]:
    """The values, of the types of a dataclass's fields. Raises SettingsError, in the name of ``what``, for a
    field that there is not (with the nearest one), and for a value of another type or out of its bounds.
    """
    if not isinstance(values, Mapping):
        raise SettingsError(f"{what} are a {type(values).__name__}: give a mapping, as {{'name': value}}.")
    plain = {name: _plain(value) for name, value in values.items()}
    try:
        settings = typed(plain, kind, what)
    except ReadingError as error:
        raise SettingsError(str(error)) from None
    return {name: getattr(settings, name) for name in plain}


def check_fields(settings: Any, prefix: str = "") -> None:
    """Raise SettingsError for the first field of a dataclass whose value its annotation does not allow. The
    message names the field after the ``prefix``, if there is one: "coop.tokens".
    """
    kind: Any = type(settings)
    for name, annotation in _keys(kind)[0].items():
        check_value(f"{prefix}.{name}" if prefix else name, getattr(settings, name), annotation)


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Raise SettingsError, in the name of an option, for a value that its annotation does not allow."""
    try:
        _fit(_plain(value), annotation, name)
    except _Misfit as error:
        raise SettingsError(f"{error.key} {error.problem}.") from None


def _plain(value: Any) -> Any:
    """A path as text, and a number of NumPy as one of Python."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if getattr(value, "shape", None) == () else value


@cache
def overrides_class(kind: Any) -> Any:
    """A dataclass with the fields and the docstring of another that constructs a dict of the values that are
    passed: of such an annotation cyclopts makes options, and their values. Where pydantic is loaded, cyclopts
    asks it to check each value against its annotation; of these dicts there is nothing to check.
    """
    members = {
        "__new__": lambda _, **values: values,
        "__get_pydantic_core_schema__": classmethod(lambda *_: {"type": "any"}),
    }
    return type(f"{kind.__name__}Overrides", (kind,), members)
