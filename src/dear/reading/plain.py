"""Plain values from JSON and YAML, without duplicate keys; tables in CSV; lists in a line."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from dear.errors import DataError
from dear.reading.files import ReadingError, decoded, read_bytes, read_text

DELIMITERS: Final = ",;\t"
SEPARATOR: Final = re.compile(r'"?sep=([^"\n\w])"?[,;\t]*\n?', re.IGNORECASE)


def split_list(text: str) -> list[str]:
    """The entries of a list with commas; one with a comma of its own is quoted: '"cup, red",plate'. Raises
    ValueError for quotes that do not match.
    """
    try:
        rows = [*csv.reader([text], skipinitialspace=True, strict=True)]
    except csv.Error as error:
        raise ValueError(f"{text!r:.200} is not a comma-separated list ({error}).") from None
    return [entry.strip() for row in rows for entry in row]


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not empty, each with the number of its line. A tab separates the cells of
    a .tsv; in other files it is what the first line has most of: commas, semicolons or tabs. A first line
    such as sep=; says it, as Excel writes. Raises ReadingError, and DataError naming the line for a quotation
    mark that is not closed.
    """
    lines = io.StringIO(read_text(path), newline=None).readlines()
    stated = SEPARATOR.fullmatch(lines[0]) if lines else None
    lines = lines[1:] if stated else lines
    first = re.sub(r'"[^"]*"', "", lines[0] if lines else "")
    likely = max(DELIMITERS, key=lambda sign: (first.count(sign), -first.find(sign)))
    sign = stated[1] if stated else "\t" if path.suffix.lower() == ".tsv" else likely
    rows = csv.reader(lines, delimiter=sign, strict=True)
    above = last = 1 if stated else 0  # line that was read without an error
    try:
        for row in rows:
            last = above + rows.line_num
            if any(map(str.strip, row)):
                yield last, row
    except csv.Error as error:
        hint = "Is there a quotation mark that is not closed?"
        raise DataError(f"{path}, line {last + 1}: {error}. {hint}") from error


def read_json(path: Path, *, file_names: bool = False) -> Any:
    """The value of a JSON file; the rest as in `parse_json`."""
    return parse_json(read_bytes(path, "json_bytes"), path, file_names=file_names)


def parse_json(content: bytes | str, where: object, *, file_names: bool = False) -> Any:
    """The value of a JSON text; with ``file_names``, names of files that are not UTF-8 are read as Python
    writes them, "caf\\udce9". Raises ReadingError for invalid JSON, duplicate keys, NaN, Infinity and half of
    a character that has two.
    """
    text = content if isinstance(content, str) else decoded(where, content)
    try:
        value = _JSON.decode(text)
        if "\\ud" in text.lower():
            errors = "surrogateescape" if file_names else "strict"
            json.dumps(value, ensure_ascii=False).encode(errors=errors)
    except RecursionError as error:
        raise ReadingError(where, "it is nested too deeply") from error
    except ValueError as error:
        raise ReadingError(where, f"it is not readable JSON: {error}") from error
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError(f"the key {_most_common(key for key, _ in pairs)} appears twice in one object")
    return mapping


def _most_common(keys: Any) -> str:
    return repr(Counter(keys).most_common(1)[0][0][:40])


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a finite number")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique_keys)


def read_yaml(path: Path) -> Any:
    """The value of a YAML file. Raises ReadingError for anything but YAML of plain values, and for duplicate
    keys.
    """
    text = decoded(path, read_bytes(path))
    try:
        return yaml.load(text, _Loader)
    except Exception as error:  # PyYAML has no class for `!!int ''` or 2026-13-45
        problem, mark = getattr(error, "problem", None) or error, getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = f"it is not readable YAML: {' '.join(str(problem).split())[:300]}{place}"
        raise ReadingError(path, reason) from error


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len({*keys}) < len(keys):
            problem = f"the key {_most_common(keys)} appears twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML reads, takes 1e-3 for text; YAML 1.2 and everybody who writes it mean a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
