"""JSON and YAML: no key twice, no number that is none, no half characters."""

import json
import os
from pathlib import Path

import pytest

from dear.reading.files import ReadingError
from dear.reading.plain import parse_json, read_yaml
from tests.helpers.errors import refuses

NINES = "9" * 5000


@pytest.mark.parametrize(
    "text",
    [
        "{", "", '{"a": NaN}', "[-Infinity]", f"[{NINES}]", '{"a": 1, "b": {"c": 1, "c": 2}}',
        "[" * 100_000, '{"a":' * 100_000, '"\\ud800"', '{"a": [{"b": {"\\uDfff": 1}}]}', '["\\udce9"]',
    ],
)  # fmt: skip
def test_json_that_is_refused(text: str) -> None:
    refuses(ReadingError, "a.json: ", parse_json, text, "a.json")


def test_names_of_files_that_are_not_utf_8_are_read_where_they_may_be() -> None:
    name = os.fsdecode(b"caf\xe9.png")
    assert parse_json(json.dumps({name: [name]}), "x", file_names=True) == {name: [name]}
    for half in ("\udc7f", "\udd00", "\ud8e9"):  # no byte of a name is written so
        with pytest.raises(ReadingError):
            parse_json(json.dumps([name, half]), "x", file_names=True)


def yaml_of(folder: Path, text: str) -> Path:
    path = folder / "a.yaml"
    path.write_text(text)
    return path


def test_yaml_is_read_with_aliases_and_rates(tmp_path: Path) -> None:
    """YAML 1.1 takes numbers with an exponent and no point for text; learning rates are written so."""
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [1e-3, 1e5, -2.E+1, '1e-3', e5, 1e]\n"
    assert read_yaml(yaml_of(tmp_path, text)) == {
        "a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": [0.001, 100000.0, -20.0, "1e-3", "e5", "1e"],
    }  # fmt: skip
    assert read_yaml(yaml_of(tmp_path, "")) is None


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 700, "a: !!timestamp never", f"a: !!int {NINES}", "a: \x01", "a: 1\na: 2",
        "a: 1\n---\nb: 2", "a: !!python/object/apply:os.system ['true']",
    ],
)  # fmt: skip
def test_yaml_that_is_refused(tmp_path: Path, text: str) -> None:
    message = refuses(ReadingError, "not readable YAML", read_yaml, yaml_of(tmp_path, text))
    assert len(message) < 600
