"""The options of a command: cyclopts makes them of a typed function and its docstring. What we add:

- lists with commas, `--tasks a,b`, and finite numbers;
- "-", which stands for standard input;
- the settings of methods, `--coop.tokens 4`, for a command that takes `**settings`: by method, a mapping of
  those that are given;
- `Flat`, for a dataclass whose fields are options of their own, shared by several commands.
"""

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import partial, update_wrapper
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import CycloptsError, Group, Parameter, Token, convert

from dear.data.settings import DataSettings
from dear.errors import DearError, UnknownNameError
from dear.evaluation.experiment import DataOverrides, Machines, RunOptions, TrainOverrides
from dear.evaluation.protocols import PROTOCOLS
from dear.methods.declaration import MethodSettings, PublishedRow, read_published_rows
from dear.methods.registry import AUTO, METHODS, PATH, known_method, option_groups, register
from dear.reading.plain import split_list
from dear.reading.typed import overrides_class

T = TypeVar("T")
Flat = Annotated[T, Parameter(name="*")]
"""A parameter whose class, a dataclass, is flattened: its fields are options of the command."""
STDIN = "\0"
"""Stands for "-" while cyclopts parses, which takes that for an option. No word on a command line has it."""
command_line = ContextVar("command_line", default="")
"""The words that `dear` was started with, as a shell takes them."""


class UsageError(DearError):
    """An option that a command does not take, or a value that an option does not accept."""


def _convert(hint: Any, tokens: Sequence[Token]) -> Any:
    """The value of an option from the texts that it was given. Raises ValueError."""
    if is_dataclass(hint):
        raise ValueError("it is a group of options: give one of them, as in GROUP.NAME.")
    tokens = [token.evolve(value="-") if token.value == STDIN else token for token in tokens]
    if any(get_origin(kind) in (list, tuple) for kind in (hint, *get_args(hint))):
        tokens = [token.evolve(value=entry) for token in tokens for entry in _split(token)]
    return convert(hint, tokens, converter=_convert_entry)


def _convert_entry(kind: type, text: str) -> Any:
    """A value that is no list. Raises ValueError."""
    if kind is int:
        return int(text)
    if kind is float and not math.isfinite(float(text)):
        raise ValueError
    try:
        return convert(kind, [text])
    except CycloptsError as error:  # it names no option: the error that cyclopts makes of a ValueError does
        raise ValueError from error


def _split(token: Token) -> list[str]:
    """The entries of a list: those between commas in the value of an option, else the whole text."""
    if token.keyword is None:
        return [token.value]
    entries = split_list(token.value)
    if not entries or not all(entries):
        raise ValueError(f"an entry of {token.value!r} is empty.")
    return entries


def _show_default(value: Any) -> str | None:
    """A default as help shows it; None hides it."""
    if value in (None, False, "", (), []):
        return None
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


OPTIONS = Parameter(
    converter=_convert,
    negative_iterable=(),
    json_dict=False,
    json_list=False,
    allow_repeating=True,
    show_default=_show_default,
)
"""What holds for the options of all commands."""

Parameter(group=Group("Runs", sort_key=60))(RunOptions)
Parameter(group=Group("Where the runs are made", sort_key=70))(Machines)
Parameter(group=Group("Training", sort_key=100), show_default=False)(TrainOverrides)
Parameter(group=Group("Reading a data set", sort_key=100))(DataSettings)
Parameter(group=Group("Reading a data set", sort_key=100), show_default=False)(DataOverrides)


def named_methods(words: Sequence[str], command: Callable[..., Any]) -> list[str]:
    """The methods that --method or --methods of a command names. Classes outside the package are registered,
    so that they have options: only the command line makes dear import code, no file does.
    """
    parameters = inspect.signature(command).parameters
    shared = [name for option in parameters.values() for name in getattr(option.default, "__dict__", ())]
    options = {"--method", "--methods"} & {f"--{name}" for name in (*parameters, *shared)}
    words = list(takewhile(lambda word: word != "--", words))
    values = [word.partition("=")[2] for word in words if word.partition("=")[0] in options]
    values += [word for option, word in pairwise(words) if option in options]
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    names = [name for name in names if name != AUTO]
    for name in filter(PATH.fullmatch, names):
        register(name)
    return names


def with_method_settings(command: Callable[..., Any], methods: Collection[str]) -> Callable[..., Any]:
    """The command with an option for each setting of some methods, in place of `**settings`."""
    signature = inspect.signature(command)
    named = [
        parameter for parameter in signature.parameters.values() if parameter.kind != parameter.VAR_KEYWORD
    ]
    if len(named) == len(signature.parameters):
        return command
    hints = get_type_hints(command, include_extras=True)
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in named]
    for prefix, method in option_groups().items():
        if method not in methods:
            continue
        kind = METHODS[method].settings
        names = tuple(dict.fromkeys([f"--{prefix.replace('_', '-')}", f"--{method}"]))
        group = Group(f"Settings of {method}", help=_other_defaults(kind), sort_key=200)
        hint = Annotated[overrides_class(kind), Parameter(name=names, group=group)]  # type: ignore[valid-type, arg-type]
        parameters.append(
            inspect.Parameter(prefix, inspect.Parameter.KEYWORD_ONLY, default={}, annotation=hint)
        )

    copy = update_wrapper(partial(command), command)
    copy.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    copy.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return copy


def expand_methods(names: Collection[str]) -> list[str]:
    """The methods with these names; "all" stands for all. Raises UnknownNameError."""
    return [*METHODS] if "all" in names else [known_method(name) for name in names]


def _other_defaults(kind: type[MethodSettings]) -> str:
    """What its authors set in place of the defaults, in words: the values, with the runs that have them."""
    commands = {name: protocol.trains_as for name, protocol in PROTOCOLS.items()}
    parts = dict[str, list[tuple[str, PublishedRow]]]()
    for row in (*read_published_rows(kind.packaged().folder()), *kind.own_rows()):
        if unknown := [name for name in row.protocols if name not in PROTOCOLS]:
            raise UnknownNameError("protocol", unknown[0], [*PROTOCOLS])
        for name in dict.fromkeys(name for settings in row.by_data.values() for name in settings):
            values = {data: settings[name] for data, settings in row.by_data.items() if name in settings}
            (data, value), *others = values.items()
            words = f"one for each of {len(values)} benchmarks" if others else f"{value} on {data}"
            parts.setdefault(name, []).append((words, row))
        for name, value in row.settings.items():
            words, listed = "empty" if value == "" else str(value), parts.setdefault(name, [])
            joined = row.joined(listed[-1][1]) if listed and listed[-1][0] == words else None
            listed[-1:] = [(words, joined)] if joined else [*listed[-1:], (words, row)]
    named = " ".join(
        f"{name.replace('_', '-')}: {'; '.join(_with_scopes(listed, commands))}."
        for name, listed in parts.items()
    )
    last = "If several values apply to a run, the last one counts."
    return f"In some runs the authors use other values than the defaults. {last} {named}" if parts else ""


def _with_scopes(
    listed: Sequence[tuple[str, PublishedRow]], commands: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Each value once with all runs that have it, if its rows follow one another."""
    for words, group in groupby(listed, key=itemgetter(0)):
        yield f"{words} {', or '.join(row.scope(commands) for _, row in group)}".rstrip()
