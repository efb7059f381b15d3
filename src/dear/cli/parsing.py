"""The options of a command, made by cyclopts from a typed function and its docstring.

Ours are: lists with commas (`--tasks badges,tags`), finite numbers, text in UTF-8, and files of options,
which go through the bounded reader.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import (
    App,
    Argument,
    ArgumentCollection,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    Token,
    UnusedCliTokensError,
    convert,
)

from dear.errors import DearError, nearest_first
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, USUAL, option_groups
from dear.reading.plain import read_yaml, split_list

T = TypeVar("T")
Flat = Annotated[T, Parameter(name="*")]
"""A parameter whose class, a dataclass, is flattened: its fields are options of the command."""

THREADS = "threads"
"""An option of every command that has --device. It is no parameter of the commands: the frame uses it."""
THREADS_HELP = (
    "Threads on the CPU, for each run. By default one for a small model, else all cores, divided among "
    "--jobs."
)
CLUSTER = "--cluster"
LONGEST = 1000  # characters of an error message, which may quote a file's contents
HYPHEN = "\0"
"""Stands for "-", which means stdin, while cyclopts parses: it takes that for an option. No word holds it."""


class UsageError(DearError):
    """An option that a command does not take, or a value that an option does not accept."""


@dataclass(frozen=True)
class Frame:
    """The options of every command.

    Attributes:
        config: Read options from a YAML file. Those on the command line come first.
        print_config: Print the options as YAML and exit.
        json: Print one JSON object, for programs.
    """

    config: Path | None = None
    print_config: bool = False
    json: bool = False


@dataclass(frozen=True)
class CommandParser:
    """The parser of one command.

    Attributes:
        app: cyclopts' application, of this command alone.
        flat: Parameters whose fields are options of their own.
        usual: The methods that it uses if none is named, for a command that takes settings of methods.
    """

    app: App
    flat: frozenset[str]
    usual: tuple[str, ...]

    @property
    def name(self) -> str:
        """The words that start the command: "dear run few-shot"."""
        return self.app.name[0]

    def parse(self, words: Sequence[str]) -> tuple[dict[str, Any], Frame]:
        """Parse the words after the command's name.

        Returns:
            The function's keyword arguments, beside them THREADS if the command has that option, and the
            options of the frame.

        Raises:
            UsageError: for an unknown option or an invalid value.
            ReadingError, LimitError: for a file of options that cannot be read.
        """
        try:
            plain = [HYPHEN if word.encode() == b"-" else word for word in words]
            _, bound, _ = self.app.parse_args(plain, print_error=False, exit_on_error=False)
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!r} is not in UTF-8. See '{self.name} --help'.") from None
        except CycloptsError as error:
            message = " ".join(_message(error).replace(HYPHEN, "-").split())
            message = message if len(message) <= LONGEST else f"{message[:LONGEST]} ..."
            raise UsageError(f"{message} See '{self.name} --help'.") from None
        bound.apply_defaults()
        options = dict(bound.arguments)
        return options, options.pop("frame")

    def as_yaml(self, options: Mapping[str, Any]) -> str:
        """The file for --config that gives these options."""
        import yaml

        from dear.cli.output import to_jsonable

        values: dict[str, Any] = {}
        for name, value in options.items():
            if isinstance(value, MethodSettings):  # other values would be taken for the user's
                value = {key: part for key, part in vars(value).items() if key in value.set_by_user}
                values |= {name: value} if value else {}
            else:
                values |= vars(value) if name in self.flat else {name: value}
        return yaml.safe_dump(to_jsonable(values), sort_keys=False, allow_unicode=True)


def build_parser(name: str, function: Callable[..., Any]) -> CommandParser:
    """Make the parser of the command `dear NAME` from its function's signature and Google-style docstring."""
    hints = get_type_hints(function, include_extras=True)
    declared = inspect.signature(function).parameters
    parameters: list[inspect.Parameter] = []
    flat: dict[str, type] = {}
    usual: tuple[str, ...] = ()
    for parameter in declared.values():
        hint, default = hints[parameter.name], parameter.default
        if parameter.kind is parameter.VAR_KEYWORD:
            parameters += map(_settings, option_groups())
            usual = (declared["method"].default,) if "method" in declared else USUAL
            continue
        if get_origin(hint) is Annotated:
            flat[parameter.name] = kind = get_args(hint)[0]
            default = kind()
            hint = hint if fields(kind) else Annotated[kind, Parameter(parse=False)]
        parameters.append(parameter.replace(annotation=hint, default=default))
    if "device" in names_of(function):
        parameters.append(_keyword(THREADS, None, Annotated[int | None, Parameter(help=THREADS_HELP)]))
    parameters.append(_keyword("frame", Frame(), Flat[Frame]))

    def command() -> None:
        """Stands for the function, with all options in its signature."""

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = inspect.getdoc(function)
    app = App(
        name=f"dear {name}",
        default_command=command,
        default_parameter=Parameter(
            converter=_value, negative_iterable=(), json_dict=False, json_list=False, allow_repeating=True
        ),
        config=_fill_from_files,
        help_flags=(),
        version_flags=(),
    )
    return CommandParser(app, frozenset(flat), usual)


def names_of(function: Callable[..., Any]) -> set[str]:
    """The parameters of a command's function, and the fields of those that are flattened."""
    hints = get_type_hints(function, include_extras=True)
    flat = [get_args(hint)[0] for hint in hints.values() if get_origin(hint) is Annotated]
    return {*inspect.signature(function).parameters, *(field.name for kind in flat for field in fields(kind))}


def _message(error: CycloptsError) -> str:
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.keyword is None:
        name = name_of(error.argument)
        return f"{name if name.startswith('--') else name.upper()} is not given."
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected: {' '.join(error.unused_tokens or [])}."
    return str(error)


def name_of(argument: Argument) -> str:
    """How messages and help call an option, "--out", or a positional argument, "images"."""
    return argument.name if argument.index is None else argument.name.removeprefix("--")


def _settings(group: str) -> inspect.Parameter:
    """The settings of a method as a parameter: --mmrlpp.beta, also as --mmrl++.beta."""
    method = METHODS[option_groups()[group]]
    prefixes = tuple(dict.fromkeys([f"--{group.replace('_', '-')}", f"--{method.name}"]))
    return _keyword(group, method.settings(), Annotated[method.settings, Parameter(name=prefixes)])


def _keyword(name: str, default: object, hint: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def sequence_of(hint: Any) -> type | None:
    """list or tuple, if values of this type are lists: list for ``list[str] | None``."""
    return next(
        (get_origin(kind) for kind in (hint, *get_args(hint)) if get_origin(kind) in (list, tuple)), None
    )


def _value(hint: Any, tokens: Sequence[Token]) -> Any:
    """The value of an option from the texts that it was given. Raises ValueError."""
    tokens = [token.evolve(value="-") if token.value == HYPHEN else token for token in tokens]
    if is_dataclass(hint):
        raise ValueError("it is a group of options: give one of them, as in GROUP.NAME.")
    if sequence_of(hint):
        tokens = [token.evolve(value=entry) for token in tokens for entry in _entries(token)]
    return convert(hint, tokens, converter=_entry)


def _entry(kind: type, text: str) -> Any:
    """A value that is no list. Raises ValueError."""
    if kind is int:
        return int(text)
    if kind is float and not math.isfinite(float(text)):
        raise ValueError
    try:
        return convert(kind, [text])
    except CycloptsError as error:  # it names no option: the error that cyclopts makes of a ValueError does
        raise ValueError from error


def _entries(token: Token) -> list[str]:
    """The entries of a list: those between commas in the value of an option, else the whole text."""
    if token.source != "cli" or token.keyword is None:
        return [token.value]
    entries = split_list(token.value)
    if not entries or not all(entries):
        raise ValueError(f"an entry of {token.value!r} is empty.")
    if entries != [token.value] and os.path.lexists(token.value):  # such as "~" in quotation marks, for "*"
        raise ValueError(
            f"{token.value[:100]!r} is the name of a file in this folder, and would be a list: put it in "
            "double quotation marks within single ones, or rename it."
        )
    return entries


def _fill_from_files(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take the options that the command line does not give from the files of --config, the last one first."""
    by_name = {name: argument for argument in arguments for name in argument.parameter.name or ()}
    for token in reversed(by_name.pop("--config").tokens):
        path = Path(token.value)
        values = read_yaml(path, as_text=True)
        if not isinstance(values, dict):
            raise UsageError(f"{path}: it holds no lines of NAME: VALUE.")
        _fill(values, "--", by_name, path, {})


def _fill(
    values: Mapping[Any, Any],
    prefix: str,
    by_name: Mapping[str, Argument],
    path: Path,
    filled: dict[int, str],
) -> None:
    """Add the values of a file; ``filled`` are the options that it has filled so far. Raises UsageError."""
    for key, value in values.items():
        name = f"{prefix}{key}".replace("_", "-")
        argument = by_name.get(name)
        if argument is None:
            nearest = nearest_first(name, by_name)[0]
            raise UsageError(f"{path}: unknown option {name[:LONGEST]}. Did you mean {nearest}?")
        if argument.children and isinstance(value, dict):
            _fill(value, f"{name}.", by_name, path, filled)
            continue
        if id(argument) in filled:
            raise UsageError(f"{path}: it gives {name} twice, in other letters or as {filled[id(argument)]}.")
        filled[id(argument)] = name
        if argument.tokens:
            continue
        if name == CLUSTER and value not in (None, "local"):
            raise UsageError(f"{path}: {name} names machines, whose code runs here: give it as an option.")
        argument.tokens.extend(_tokens(name, value, argument.hint, path))  # append compares with all others


def _tokens(name: str, value: Any, hint: Any, path: Path) -> Iterator[Token]:
    """What gives an option the value of a file. Raises UsageError for a value that no option has."""
    start = Token(keyword=name, source=str(path))
    sequence = sequence_of(hint)
    if value is None or (value == [] and sequence is not None):
        yield start.evolve(implicit_value=sequence() if sequence is not None and value == [] else None)
        return
    entries = value if isinstance(value, list) and sequence else [value]
    for index, entry in enumerate(entries):
        if entry is None or isinstance(entry, list | dict):
            raise UsageError(f"{path}: {name} cannot be {str(value)[:LONGEST]}.")
        yield start.evolve(value=str(entry), index=index)
