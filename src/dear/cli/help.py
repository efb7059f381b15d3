"""The help of a command: its options with their descriptions in two columns, identical on every terminal.

`--help` shows what most people set, `--help-all` every option.
"""

from collections.abc import Collection, Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from cyclopts import Argument
from docstring_parser import DocstringStyle, parse

from dear.cli.parsing import CommandParser, name_of, sequence_of
from dear.evaluation.protocols import PROTOCOLS
from dear.methods.declaration import MethodSettings, read_published_rows
from dear.methods.registry import METHODS, option_groups

WIDTH = 100
COLUMN = 32  # where descriptions begin
EXPERT = frozenset(
    [
        *("--config", "--print-config", "--json", "--threads"),
        *("--role-variant", "--select", "--start-over"),
        *("--cluster", "--gpus", "--devices", "--nodes", "--log", "--wandb"),
        *("--rank", "--phrases-a-head", "--images-a-head", "--sentence-model"),
        *("--contributions", "--spans", "--itself"),
    ]
)
"""Options that only `--help-all` explains; `--help` names them."""
PLACEHOLDERS = {str: "TEXT", Path: "PATH", int: "INT", float: "NUMBER"}


def help_text(parser: CommandParser, methods: Collection[str] = (), *, everything: bool = False) -> str:
    """What `--help` prints: the command's common options and the settings of the named methods.

    With ``everything`` (`--help-all`) also the other options, and the settings of the methods that the
    command uses if none is named.
    """
    page = CommandHelp(parser)
    keywords = [option for option in page.keywords if everything or option.name not in EXPERT]
    parts = [page.head(), page.section("options", keywords)] if keywords else [page.head()]
    visible = {*methods} or ({*parser.usual} if everything else set())
    hidden = [option.name for option in page.keywords if option not in keywords]
    for group in page.titles:
        method = _methods().get(group)
        if method in visible or (everything and method is None):
            parts.append(page.section(page.titles[group], page.groups[group]))
        elif method is None:
            hidden.append(f"{group}.*")
    if hidden:
        names = fill(
            ", ".join(hidden), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        parts.append(f"more options, which '{parser.name} --help-all' explains:\n{names}")
    if parser.usual and not visible >= {*METHODS}:
        choice = next((name for name in ("--methods", "--method") if name in page.names), "")
        of_method = f" {choice} NAME" if choice else ""
        parts.append(f"settings of a method: '{parser.name}{of_method} --help{'' if choice else '-all'}'")
    return "\n\n".join(parts) + "\n"


def descriptions(described: Any) -> dict[str, str]:
    """The description of each parameter, from the docstring of a function or of a class and its bases."""
    docs = [part.__doc__ or "" for part in reversed(getattr(described, "__mro__", [described]))]
    parameters = [entry for doc in docs for entry in parse(cleandoc(doc), DocstringStyle.GOOGLE).params]
    return {entry.arg_name: " ".join((entry.description or "").split()) for entry in parameters}


def list_other_defaults(kind: type[MethodSettings], field_name: str) -> list[tuple[Any, str]]:
    """Values that the authors set for a field in place of its default, with the runs that have them."""
    commands = {name: protocol.trains_as for name, protocol in PROTOCOLS.items()}
    rows = [row for row in read_published_rows(kind.folder()) if field_name in row.settings]
    return [(row.settings[field_name], row.scope(commands)) for row in rows]


class CommandHelp:
    """The options of a command.

    Attributes:
        name: The words that start the command: "dear run few-shot".
        groups: Options by group: "" for the command's own, "--train" for --train.epochs.
        titles: The title of each of the other groups.
    """

    def __init__(self, parser: CommandParser) -> None:
        arguments = parser.app.assemble_argument_collection()
        self.name = parser.name
        self.function = parser.app.default_command
        self.owners = {id(child): parent.hint for parent in arguments for child in parent.children}
        self.documented: dict[Any, dict[str, str]] = {}
        self.groups: dict[str, list[Argument]] = {"": []}
        for argument in arguments:
            if argument.show:
                self.groups.setdefault(argument.name.rpartition(".")[0], []).append(argument)
        methods = {group: f"settings of {method}" for group, method in _methods().items()}
        self.titles = {
            group: methods.get(group) or self.about(arguments[group]).rstrip(".")
            for group in self.groups
            if group
        }

    @property
    def positional(self) -> list[Argument]:
        """The command's arguments without a name of their own on the command line."""
        return [option for option in self.groups[""] if option.index is not None]

    @property
    def keywords(self) -> list[Argument]:
        """The command's own options, without groups such as --train."""
        return [option for option in self.groups[""] if option.index is None]

    @property
    def names(self) -> set[str]:
        """The names of the command's own options."""
        return {option.name for option in self.keywords}

    def usage(self) -> str:
        """How the command is typed, with what it requires."""
        required = [_invocation(option) for option in [*self.positional, *self.keywords] if option.required]
        return " ".join([self.name, *required, "[options]"])

    def head(self) -> str:
        """Usage, what the command does, and its arguments."""
        parts = [_filled(f"usage: {self.usage()}", indent=4), *map(_filled, self.description())]
        if self.positional:
            parts.append(self.section("arguments", self.positional))
        return "\n\n".join(parts)

    def about(self, argument: Argument) -> str:
        """What the docstring says of an option, or of a group."""
        owner = self.owners.get(id(argument), self.function)
        if owner not in self.documented:
            self.documented[owner] = descriptions(owner)
        return argument.parameter.help or self.documented[owner].get(argument.field_info.name, "")

    def description(self) -> Iterator[str]:
        """What the command does, in paragraphs."""
        text = parse(self.function.__doc__ or "", DocstringStyle.GOOGLE).description or ""
        for paragraph in text.split("\n\n"):
            yield " ".join(paragraph.split())

    def section(self, title: str, options: Sequence[Argument]) -> str:
        """Options under a title, in two columns."""
        return "\n".join([fill(f"{title}:", WIDTH), *map(self.entry, options)])

    def described(self, option: Argument) -> tuple[str, str]:
        """How an option is typed, and what it does."""
        owner = self.owners.get(id(option))
        others = list[tuple[Any, str]]()
        if isinstance(owner, type) and issubclass(owner, MethodSettings):
            others = list_other_defaults(owner, option.field_info.name)
        return _invocation(option), " ".join(filter(None, [self.about(option), _default(option, others)]))

    def entry(self, option: Argument) -> str:
        """An option and its description, in two columns."""
        typed, about = self.described(option)
        indent = " " * COLUMN
        text = fill(about, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        start = f"  {typed}"
        return f"{start:{COLUMN}}{text.lstrip()}" if len(start) < COLUMN - 1 else f"{start}\n{text}"


def _filled(text: str, indent: int = 0) -> str:
    return fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _methods() -> dict[str, str]:
    return {f"--{group.replace('_', '-')}": method for group, method in option_groups().items()}


def _invocation(option: Argument) -> str:
    """How an option is typed: "--shots INT", and "IMAGES..." for a positional argument."""
    several = sequence_of(option.hint) is not None
    if option.index is not None:
        return name_of(option).upper() + "..." * several
    kind = next(_kinds(option.hint))
    if kind is bool:
        return option.name if option.field_info.default is False else f"{option.name}, {option.negatives[0]}"
    choices = option.get_choices()
    return (
        f"{option.name} {'{' + ','.join(choices) + '}' if choices else PLACEHOLDERS[kind]}{',...' * several}"
    )


def _kinds(hint: Any) -> Iterator[type]:
    """The types of the parts of a value: str, then NoneType, for ``list[str] | None``."""
    parts = map(type, get_args(hint)) if get_origin(hint) is Literal else get_args(hint)
    for part in parts:
        yield from _kinds(part)
    if not get_args(hint):
        yield hint


def in_words(value: Any) -> str:
    """A default as help prints it."""
    names = {"": "empty", None: "none", True: "yes", False: "no"}
    return names[value] if isinstance(value, str | bool | None) and value in names else str(value)


def _default(option: Argument, others: Sequence[tuple[Any, str]]) -> str:
    """The value of an option that is not given, with the ``others`` that it has in some runs."""
    default = option.field_info.default
    if others:
        values = [in_words(default), *(f"{in_words(value)} {scope}" for value, scope in others)]
        return f"(default: {'; '.join(values)})"
    if option.required:
        return "(required)" if option.index is None else ""
    if default is True:
        return "(default: yes)"
    if isinstance(default, list | tuple):
        default = ",".join(map(str, default))
    return "" if default is None or default is False or default == "" else f"(default: {default})"
