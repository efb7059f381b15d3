"""Turn a typed function into command options: dashes, flags for bools, YAML files, help 100 columns wide.

jsonargparse does the typing; this file makes its options look like those of other programs (`--dry-run`, not
`--dry_run true`; `--tasks badges,tags`, not `--tasks '[badges, tags]'`) and its errors like ours.
"""

import argparse
import csv
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import yaml
from docstring_parser import DocstringStyle, parse
from jsonargparse import (
    ActionYesNo,
    ArgumentError,
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
    _actions,
    _typehints,
    get_loader,
    set_loader,
    set_parsing_settings,
)
from jsonargparse._actions import ActionConfigFile, _ActionConfigLoad

from dear.errors import DearError, nearest_first
from dear.limits import LimitError, at_most
from dear.methods.registry import METHODS, USUAL, option_groups
from dear.reading.files import ReadingError, require_plain
from dear.reading.plain import require_small_yaml

T = TypeVar("T")
FLAT = "flat"
THREADS = "threads"
"""An option of every command that has ``--device``. It is no parameter of the commands: the frame uses it."""
Flat = Annotated[T, FLAT]
"""A parameter whose class, a dataclass, is flattened: its fields are options of the command. The parameter's
own name must not be one of theirs.
"""

THREADS_HELP = (
    "Threads on the CPU, for each run; if not given, by the width of the model: one for a small one, else "
    "all cores, divided among --jobs."
)
WIDTH = 100
LONGEST = 1000  # characters of an error message, which may quote a file's contents
OPTION_GROUP_OF = {method: group for group, method in option_groups().items()}
FILES = (ActionConfigFile, _ActionConfigLoad)  # actions of options whose value may be a YAML file
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w.]*")
# jsonargparse's wording, and ours.
WORDING = (
    (re.compile(r"<class\s+'(?:\w+\.)*(\w+)'>"), r"\1"),
    (re.compile(r'^Parser key "([\w.]+)":\s*', re.MULTILINE), r"--\1: "),
    (re.compile(r"Expected an? typing\.Literal\[(.*)\]"), r"Expected one of \1"),
    # For an optional value: show why it is invalid, not also that it is not None.
    (re.compile(r"Does not validate .*?- (Expected [^\n]* Got value: [^\n]*).*", re.DOTALL), r"\1"),
    (re.compile(r"Does not validate .*?- (Expected [^\n]*).*Given value: ", re.DOTALL), r"\1. Got value: "),
    (re.compile(r"(Expected a str\. Got value: .*)", re.DOTALL), r"\1 (in YAML, such a text needs quotes)"),
    (re.compile(r"Expected a int\b"), "Expected an int"),
    (re.compile(r"Problems parsing config: "), "--config: "),
    (re.compile(r'in "<unicode string>", '), "in "),
    (re.compile(r"Unexpected config: .*", re.DOTALL), "--config: the file holds no lines of NAME: VALUE"),
    (re.compile(r"^'utf-8' codec can't decode .*"), "--config: the file is not in UTF-8"),
    (re.compile(r"'utf-8' codec can't encode [^)\n]*"), "the name is not in UTF-8"),
)


class UsageError(DearError):
    """An option that a command does not take, or a value that an option does not accept."""


class _Formatter(DefaultHelpFormatter):
    """Help that is identical on every terminal and Python version."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=WIDTH)  # type: ignore[no-untyped-call]

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        if "--print_config" in action.option_strings:
            return "--print-config"
        names = ", ".join(name for name in action.option_strings if not name.endswith("+"))
        values = (
            ""
            if action.nargs == 0
            else self._format_args(action, self._get_default_metavar_for_optional(action))
        )
        return f"{names} {values}".rstrip()


@dataclass(frozen=True)
class CommandParser:
    """The parser of one command.

    Attributes:
        parser: jsonargparse's parser, with underscores in the names of its options.
        listed: Options whose value is a list.
        texts: Those of them whose value is a list of texts.
        flat: Parameters whose fields are options of their own, with their classes.
        usual: The methods that it uses if none is named, for a command that takes settings of methods.
    """

    parser: ArgumentParser
    listed: frozenset[str]
    texts: frozenset[str]
    flat: Mapping[str, type]
    usual: tuple[str, ...] = ()

    @property
    def chooses(self) -> str:
        """The option that chooses methods."""
        return "methods" if "--methods" in self.parser._option_string_actions else "method"

    def help(self, methods: Collection[str] = ()) -> str:
        """The help text, 100 columns wide, with the settings of the methods, by default of those that the
        command uses if none is named.
        """
        return self._text({*methods} or {*self.usual})

    def help_of_methods(self, methods: Collection[str]) -> str:
        """The part of the help that is about the settings of methods."""
        groups = {group for group, name in option_groups().items() if name in methods}
        for action in self.parser._actions:
            if not any(name.removeprefix("--").partition(".")[0] in groups for name in action.option_strings):
                action.help = argparse.SUPPRESS
        _, _, text = _dashed(_worded(self.parser.format_help())).partition("Settings of ")
        return f"Settings of {text}"

    def _text(self, methods: Collection[str]) -> str:
        groups, left_out = {**option_groups()} if self.usual else {}, False
        for action in self.parser._actions:
            group = next((name.removeprefix("--").partition(".")[0] for name in action.option_strings), "")
            if group in groups and groups[group] not in methods:
                action.help, left_out = argparse.SUPPRESS, True
        more = f"\nThe settings of another method: '{self.parser.prog} --{self.chooses} NAME --help'.\n"
        return _dashed(_worded(self.parser.format_help())) + (more if left_out else "")

    def parse(self, arguments: Sequence[str]) -> tuple[dict[str, Any], bool]:
        """Parse the words after the command's name.

        Returns:
            The function's keyword arguments, with dataclasses built, beside them THREADS if the command has
            that option, and whether JSON is requested.

        Raises:
            UsageError: for an unknown option or a value of the wrong type.
        """
        try:
            plain = self._plain(arguments)
            self._require_files(plain)
            parsed = self.parser.parse_args(plain)
            self._require_groups(parsed)
            values = self.parser.instantiate(parsed)
        except (ArgumentError, UnicodeDecodeError) as problem:
            message = _dashed(_joined(_worded(str(problem))))
            message = message if len(message) <= LONGEST else f"{message[:LONGEST]} ..."
            raise UsageError(f"{message}{self._hint(message)} See '{self.parser.prog} --help'.") from None
        keywords = dict(vars(values))
        keywords.pop("config")
        as_json = bool(keywords.pop("json"))
        for name, kind in self.flat.items():
            keywords[name] = kind(**{one.name: keywords.pop(one.name) for one in fields(kind)})
        return keywords, as_json

    def _plain(self, arguments: Sequence[str]) -> list[str]:
        """Rewrite options as jsonargparse expects them: underscores in names, brackets around lists."""
        plain: list[str] = []
        for position, word in enumerate(arguments):
            if word == "--":
                return [*plain, *arguments[position:]]
            name, equals, value = word.partition("=")
            if name.startswith("--"):
                group, dot, field = name[2:].partition(".")
                group = OPTION_GROUP_OF.get(group, group)  # --mmrl++.beta is --mmrlpp.beta
                name = "--" + f"{group}{dot}{field}".replace("-", "_")
                plain.append(name + equals + (self._bracketed(name, value) if equals else ""))
            else:
                plain.append(self._bracketed(plain[-1], word) if plain else word)
        return plain

    def _bracketed(self, name: str, value: str) -> str:
        """An option's value as jsonargparse expects it: a list as YAML, any other unchanged."""
        if name not in self.listed or (value.startswith("[") and value.endswith("]")):
            return value
        return _quoted(name, value) if name in self.texts else f"[{value}]"

    def _require_files(self, words: Sequence[str]) -> None:
        """Raise ArgumentError for an options file that is a pipe or a device, LimitError for one that is too
        large.
        """
        for before, word in zip(["", *words], words, strict=False):
            name, equals, value = word.partition("=")
            name, value = (name, value) if equals and name.startswith("--") else (before, word)
            known = self.parser._option_string_actions
            exact = [known[name]] if name in known else []  # --data is not an abbreviation of --dataset
            found = exact or [one for key, one in known.items() if key.startswith(name)]
            if not name.startswith("--") or not any(isinstance(one, FILES) for one in found):
                continue
            try:
                require_plain(Path(value))
                at_most("yaml_bytes", Path(value).stat().st_size, value)
            except ReadingError as error:
                raise ArgumentError(None, f"{name}: {error.reason}") from error
            except (OSError, ValueError):  # not a file name: the parser reports what it is
                continue

    def _require_groups(self, values: Namespace) -> None:
        """Raise ArgumentError for a value in place of a group of options, which jsonargparse accepts."""
        for name in self.parser._option_string_actions:
            group, dot, _ = name.removeprefix("--").partition(".")
            if dot and not isinstance(values[group], Namespace):
                raise ArgumentError(
                    None, f"--{group}: Expected lines of NAME: VALUE. Got value: {values[group]}"
                )

    def _hint(self, message: str) -> str:
        unknown = re.match(r"unrecognized arguments: (--[\w.-]+)", message, re.IGNORECASE)
        if unknown is None:
            return "." if message[-1] not in ".!?" else ""
        known = {_dashed(name) for name in self.parser._option_string_actions if name.startswith("--")}
        nearest = nearest_first(unknown[1], (name for name in known if not name.endswith("+")))
        return f". Did you mean {nearest[0]}?"


def build_parser(name: str, function: Callable[..., Any]) -> CommandParser:
    """Make the parser of the command `dear NAME` from its function's signature and Google-style docstring."""
    set_parsing_settings(docstring_parse_style=DocstringStyle.GOOGLE)
    set_loader("yaml", _loaded, (yaml.YAMLError, ReadingError, LimitError))
    documented = parse(inspect.getdoc(function) or "", DocstringStyle.GOOGLE)
    described = {entry.arg_name: entry.description for entry in documented.params}
    parameters = inspect.signature(function).parameters.values()
    hints = get_type_hints(function)
    extras = get_type_hints(function, include_extras=True)
    flat = {name: hints[name] for name, hint in extras.items() if FLAT in getattr(hint, "__metadata__", ())}
    for kind in flat.values():
        hints |= get_type_hints(kind)
        described |= {one.arg_name: one.description for one in parse(inspect.getdoc(kind) or "").params}
    inner = [one for kind in flat.values() for one in inspect.signature(kind).parameters.values()]
    flags = [one for one in (*parameters, *inner) if hints.get(one.name) is bool]
    positional = [one.name for one in parameters if one.default is one.empty and one.kind in POSITIONAL]
    several = [name for name in positional if _is_list(hints[name])]
    families = [one.name for one in parameters if one.kind is one.VAR_KEYWORD]  # settings of every method

    parser = ArgumentParser(
        prog=f"dear {name}",
        usage=" ".join([f"dear {name} [options]", *(f"{p}..." if p in several else p for p in positional)]),
        description=documented.description or "",
        formatter_class=_Formatter,
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="Read options from a YAML file.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object, for programs.")
    parser._option_string_actions["--print_config"].help = "Print the options as YAML and exit."
    parser.add_function_arguments(
        function,
        as_group=False,
        as_positional=True,
        skip={*(flag.name for flag in flags), *families, *several, *flat},
    )
    for kind in flat.values():
        parser.add_class_arguments(
            kind, as_group=False, skip={one.name for one in flags if one in inner and one.name in hints}
        )
    if "--device" in parser._option_string_actions:
        parser.add_argument(f"--{THREADS}", type=int | None, default=None, help=THREADS_HELP)
    for word in several:  # jsonargparse would expect one word, a list in brackets
        parser.add_argument(word, nargs="+", help=described.get(word))
    for group, method in option_groups().items() if families else ():
        parser.add_class_arguments(METHODS[method].settings, group)
    for flag in flags:
        parser.add_argument(
            f"--{flag.name}", action=ActionYesNo, default=flag.default, help=described.get(flag.name)
        )
    options = {key: hint for key, hint in hints.items() if key not in flat}
    for one in parameters:
        if one.name not in families and is_dataclass(hints.get(one.name)):  # --settings.attributes
            inside = get_type_hints(hints[one.name])
            options |= {f"{one.name}.{field}": hint for field, hint in inside.items()}
    listed = {f"--{key}": hint for key, hint in options.items() if _is_list(hint)}
    texts = {key for key, hint in listed.items() if {list[str], tuple[str, ...]} & {hint, *get_args(hint)}}
    usual = _usual(parser) if families else ()
    return CommandParser(parser, frozenset(listed), frozenset(texts), flat, usual)


def _usual(parser: ArgumentParser) -> tuple[str, ...]:
    """The methods that a command uses if none is named."""
    if "--method" not in parser._option_string_actions:
        return USUAL
    return (parser.get_default("method"),)


_load = get_loader("yaml")


def _loaded(text: str) -> Any:
    """jsonargparse's value of a YAML text. Raises ReadingError or LimitError for a text that is too large."""
    require_small_yaml(text, "the YAML")
    try:
        return _load(text)
    except UnicodeError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        # PyYAML's errors for a text that does not match its tag, and for numbers of thousands of digits.
        raise ReadingError("the YAML", f"it is not readable: {error}") from error


def _not_imported(name: str, check_path: bool = True) -> Any:
    """In place of jsonargparse's import of what a file calls class_path. Raises ImportError."""
    del check_path
    raise ImportError(f"{name} is not imported: no file makes dear import code")


for _module in (_typehints, _actions):
    _module.import_object = _not_imported


def _is_list(hint: Any) -> bool:
    return any(get_origin(one) in (list, tuple) for one in (hint, *get_args(hint)))


def _quoted(name: str, value: str) -> str:
    """Comma-separated texts as a YAML list, in which 1 and yes are texts too. Raises ArgumentError."""
    try:
        value.encode()
        (texts,) = csv.reader([value], skipinitialspace=True, strict=True)
    except (UnicodeEncodeError, csv.Error) as error:
        raise ArgumentError(None, f"{name}: {value!r} is not a comma-separated list ({error})") from None
    if not texts or not all(text.strip() for text in texts):
        raise ArgumentError(None, f"{name}: an entry of {value!r} is empty")
    return yaml.safe_dump([text.strip() for text in texts], default_flow_style=True, width=math.inf)


def _worded(text: str) -> str:
    for pattern, words in WORDING:
        text = pattern.sub(words, text)
    return text


def _joined(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def _dashed(text: str) -> str:
    return OPTION.sub(lambda match: match.group().replace("_", "-"), text)
