"""What a user sets of a settings dataclass, as plain data: a mapping from some of its fields to values."""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from dear.errors import SettingsError
from dear.reading.files import ReadingError
from dear.reading.typed import typed


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
