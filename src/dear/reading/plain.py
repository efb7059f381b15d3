"""Plain values from JSON and YAML: no duplicate keys, bounded size and nesting, finite JSON numbers; rows of
CSV; lists in a line.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from dear.errors import DataError
from dear.limits import at_most, limit
from dear.reading.files import ReadingError, decoded, read_bytes, split_lines

QUOTES: Final = "Is there a quotation mark that is not closed?"
SMALL: Final = 8  # values up to which limits are not checked, for the lines of a table
DIGITS: Final = 19  # of a 64-bit integer
NO_MAXIMUM: Final = str(int(1e30))
"""How transformers writes that a text may have any length. It counts as the largest integer of 64 bits."""
DIGITS_OF_YAML: Final = 400  # the range of each key is checked by its reader
HALF_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")  # also begins each half of an honest pair
HALVES: Final = re.compile("[\ud800-\udfff]")
HALVES_OF_NO_NAME: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""All but those by which Python writes the bytes of a file's name that are not UTF-8."""


def csv_rows(text: str, path: object, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, each with the number of its first line; any line end within quotation marks is
    a newline. Raises DataError for invalid CSV and for a row of more cells than the limit of columns,
    before it is split: a cell takes far more memory than its text.
    """
    cells, most, first = 1, limit("columns"), 1

    def lines() -> Iterator[str]:
        nonlocal cells
        for line in split_lines(text, path):
            cells += line.count(delimiter)
            if cells > most:
                raise csv.Error(f"it has more than {most:,} cells")
            yield f"{line}\n"

    rows = csv.reader(lines(), delimiter=delimiter)
    try:
        for row in rows:
            yield first, row
            first, cells = rows.line_num + 1, 1
    except csv.Error as error:
        raise DataError(f"{path}, line {first}: {error}. {QUOTES}") from error


def split_list(text: str) -> list[str]:
    """The entries of a list with commas; one with a comma of its own is quoted: '"cup, red",plate'. Raises
    ValueError for quotes that do not match.
    """
    try:
        rows = [*csv.reader([text], skipinitialspace=True, strict=True)]
    except csv.Error as error:
        raise ValueError(f"{text!r:.200} is not a comma-separated list ({error}).") from None
    return [entry.strip() for row in rows for entry in row]


def read_json(
    path: Path, value_limit: str = "json_values", *, file_names: bool = False, links: bool = False
) -> Any:
    """The value of a JSON file, which is no link unless ``links``; the rest as in `parse_json`."""
    return parse_json(read_bytes(path, links=links), path, value_limit, file_names=file_names)


def parse_json(
    content: bytes | str, where: object, value_limit: str = "json_values", *, file_names: bool = False
) -> Any:
    """The value of a JSON text; with ``file_names``, names of files that are not UTF-8 are read as Python
    writes them, "caf\\udce9". ``value_limit`` is the limit of its keys and values.

    Raises ReadingError for invalid JSON, NaN, Infinity, integers beyond 64 bits, half surrogates and
    duplicate keys; LimitError for too many values or levels.
    """
    text = content if isinstance(content, str) else decoded(where, content)
    # Counted before parsing: each takes at least a comma, a bracket, a brace or a colon.
    values = sum(map(text.count, ",[{:"))
    if values > SMALL:
        at_most(value_limit, values, where)
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ReadingError(where, "it is nested too deeply") from error
    except ValueError as error:
        raise ReadingError(where, f"it is not readable JSON: {error}") from error
    if values > SMALL:
        require_shallow(value, where)
    if HALF_ESCAPE.search(text):
        require_whole(value, where, HALVES_OF_NO_NAME if file_names else HALVES)
    return value


def require_shallow(value: Any, where: object) -> None:
    """Raise LimitError for values that are nested too deeply."""
    levels, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        levels += 1
        at_most("json_depth", levels, where)
        below = (holder.values() if isinstance(holder, dict) else holder for holder in level)
        level = [entry for entries in below for entry in entries if isinstance(entry, dict | list)]


def require_whole(value: Any, where: object, halves: re.Pattern[str] = HALVES) -> None:
    """Raise ReadingError for a text or key with a half surrogate, which no file in UTF-8 can hold."""
    for entry in walked(value):
        if isinstance(entry, str) and not entry.isascii() and (half := halves.search(entry)):
            raise ReadingError(where, f"a text holds half of a character, {half[0]!r}")


def walked(value: Any) -> Iterator[Any]:
    """A value and all keys and values within it."""
    todo = [value]
    while todo:
        entry = todo.pop()
        yield entry
        if isinstance(entry, dict):
            todo += [*entry, *entry.values()]
        elif isinstance(entry, list):
            todo += entry


def read_yaml(path: Path, *, as_text: bool = False, links: bool = False) -> Any:
    """The value of a YAML file, which is no link unless ``links``; errors as in `parse_yaml`."""
    return parse_yaml(decoded(path, read_bytes(path, "yaml_bytes", links=links)), path, as_text=as_text)


def parse_yaml(text: str, where: object, *, as_text: bool = False) -> Any:
    """The value of a YAML text; ``as_text`` leaves everything but null as it is written: 007, yes, 1e-3.

    Raises ReadingError for anything but YAML of plain values, integers of more than 400 digits, duplicate
    keys and aliases within their own value; LimitError for too many bytes, levels or, with aliases expanded,
    values.
    """
    at_most("yaml_bytes", len(text.encode()), where)
    try:
        loader = (_TextLoader if as_text else _Loader)(text, where)
        node = loader.get_single_node()
        if node is None:
            return None
        _require_small(node, where)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ReadingError(where, f"it is not readable YAML: {_in_one_line(error)}") from error
    except RecursionError as error:
        raise ReadingError(where, "it is nested too deeply") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # PyYAML's own for a text that its tag does not fit: `!!int ''`, `!!timestamp never`, 2026-13-45.
        raise ReadingError(where, f"it is not readable YAML: {error}") from error


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without duplicate keys, huge integers, half surrogates and zero bytes, which no
    path may have. Levels and values are counted while they are read, as each token takes time for all levels.
    """

    def __init__(self, text: str, where: object) -> None:
        super().__init__(text)
        self.where, self.values, self.levels = where, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.values += 1
        at_most("yaml_values", self.values, self.where)
        nested = not self.check_event(yaml.ScalarEvent, yaml.AliasEvent)
        self.levels += nested
        at_most("json_depth", self.levels, self.where)
        node = super().compose_node(parent, index)
        self.levels -= nested
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = str(node.value)
        if "\0" in text:
            raise ValueError("a text holds a zero byte")
        if not text.isascii() and (half := HALVES.search(text)):
            raise ValueError(f"a text holds half of a character, {half[0]!r}")
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in names:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value[:40]!r} appears twice", key.start_mark
                )
            names.add(key.value)
        return super().construct_mapping(node, deep)


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > DIGITS_OF_YAML:
        raise ValueError(f"an integer of {len(node.value):,} digits")
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
# YAML 1.1, which PyYAML reads, takes 1e-3 for text; YAML 1.2 and everybody who writes it mean a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _TextLoader(_Loader):
    """The same loader, in which texts stay as they are written unless a tag says so."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML declares it)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("null", "merge")]
        for first, resolvers in _Loader.yaml_implicit_resolvers.items()
    }


def _require_small(root: yaml.Node, path: object) -> None:
    """Refuse a document of too many levels or values, counting an alias's value at each use: shared values
    take no memory, but any code that walks, merges or prints them visits each.
    """
    sizes: dict[int, tuple[int, int]] = {}  # values and levels of each node
    open_nodes: set[int] = set()
    todo: list[tuple[yaml.Node, bool]] = [(root, False)]
    while todo:  # not recursive, so that deep nesting is reported instead of overflowing the stack
        node, done = todo.pop()
        if id(node) in sizes and not done:
            continue
        children = _children(node)
        if done:
            open_nodes.discard(id(node))
            below = [sizes[id(child)] for child in children]
            levels = max((depth for _, depth in below), default=0) + isinstance(node, yaml.CollectionNode)
            sizes[id(node)] = 1 + sum(values for values, _ in below), levels
            at_most("yaml_values", sizes[id(node)][0], path)
            at_most("json_depth", levels, path)
        elif id(node) in open_nodes:
            raise ReadingError(path, "an alias appears within the value that it refers to")
        else:
            open_nodes.add(id(node))
            todo += [(node, True), *((child, False) for child in children)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key, times in counts.items() if times > 1)
        raise ValueError(f"the key {repeated[:40]!r} appears twice in one object")
    return mapping


def _whole(digits: str) -> int:
    if digits == NO_MAXIMUM:
        return 2**63 - 1
    if len(digits) > DIGITS + 1:  # and a sign
        raise ValueError(f"{digits[:20]}... is an integer of {len(digits):,} digits")
    return _within(int(digits))


def _within(value: int) -> int:
    if abs(value) >= 2**63:
        raise ValueError("an integer is beyond 64 bits")
    return value


def _finite(number: str | float) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{str(number)[:40]} is not a finite number")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def _in_one_line(error: yaml.YAMLError) -> str:
    """PyYAML's message in one line of at most 300 characters, without the line that it quotes."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        text = f"{error.problem} in line {mark.line + 1}, column {mark.column + 1}"
    else:
        text = str(error).replace('in "<unicode string>", ', "in ")
    return " ".join(text.split())[:300]


_DECODER: Final = json.JSONDecoder(
    parse_int=_whole, parse_float=_finite, parse_constant=_no_number, object_pairs_hook=_object
)
