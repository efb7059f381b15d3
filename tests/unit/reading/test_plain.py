"""JSON and YAML: no key twice, no number that is none, no half characters."""

import json
import os
from pathlib import Path

import pytest

from dear.errors import DearError
from dear.reading.files import ReadingError
from dear.reading.plain import parse_json, read_json, read_yaml

NINES = "9" * 5000


def test_what_is_fine_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, -2.5, true, null, "x"], "b": {"c": 9223372036854775807}}')
    assert read_json(path) == {"a": [1, -2.5, True, None, "x"], "b": {"c": 2**63 - 1}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not readable JSON"),
        ("", "it is not readable JSON"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ("[-Infinity]", "-Infinity is not a finite number"),
        (f"[{NINES}]", "not readable JSON"),
        (f"[-{NINES}]", "not readable JSON"),
        ("[9223372036854775808]", "beyond 64 bits"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' appears twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('"\\ud800"', r"a text holds half of a character, '\\ud800'"),
        ('{"a": [{"b": {"\\uDfff": 1}}]}', r"half of a character, '\\udfff'"),
        ('["\\ud83d\\ude00", "\\ude00\\ud83d"]', r"half of a character, '\\ude00'"),
        ('["\\udce9"]', r"half of a character, '\\udce9'"),
    ],
)
def test_json_that_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DearError, match=reason) as told:
        parse_json(text, "a.json")
    assert str(told.value).startswith("a.json")
    assert "\n" not in str(told.value)


def test_whole_characters_are_read() -> None:
    assert parse_json(r'{"\ud83d\ude00": ["\\ud800", "\u00e9"]}', "x") == {"\U0001f600": ["\\ud800", "\xe9"]}


def test_names_of_files_that_are_not_utf_8_are_read_where_they_may_be() -> None:
    name = os.fsdecode(b"caf\xe9.png")
    assert parse_json(json.dumps({name: [name]}), "x", file_names=True) == {name: [name]}
    for half in ("\udc7f", "\udd00", "\ud8e9"):  # no byte of a name is written so
        with pytest.raises(ReadingError, match="half of a character"):
            parse_json(json.dumps([name, half]), "x", file_names=True)


def yaml_of(folder: Path, text: str) -> Path:
    path = folder / "a.yaml"
    path.write_text(text)
    return path


def test_aliases_and_merges_that_are_few_are_read(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n"
    assert read_yaml(yaml_of(tmp_path, text)) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": [{"x": 1, "y": 2}] * 2,
    }
    assert read_yaml(yaml_of(tmp_path, "")) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: " + "[" * 50_000, "nested too deeply"),
        ("a: !!int ''", "not readable YAML"),
        ("a: !!bool maybe", "not readable YAML"),
        ("a: !!timestamp never", "not readable YAML"),
        ("a: 2026-13-45", "not readable YAML: month"),
        (f"a: {NINES}", "not readable YAML"),
        ("a: !!python/object/apply:os.system ['true']", "not readable YAML"),
        ("a: \x01", "not readable YAML"),
        ("a: 1\na: 2", "the key 'a' appears twice"),
        ("a: 1\n---\nb: 2", "not readable YAML"),
    ],
)
def test_yaml_that_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DearError, match=reason) as told:
        read_yaml(yaml_of(tmp_path, text))
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 600


def test_values_as_they_are_written(tmp_path: Path) -> None:
    text = "a: [007, yes, 1e-3, 2026-13-45, null, ~, 'null']\n<<: {b: off}\nc: !!int 3\n"
    texts = ["007", "yes", "1e-3", "2026-13-45", None, None, "null"]
    assert read_yaml(yaml_of(tmp_path, text), as_text=True) == {"a": texts, "b": "off", "c": 3}
    for refused in ("[" * 50_000, "a: 1\na: 2", "a: !!python/name:os.system"):
        with pytest.raises(DearError):
            read_yaml(yaml_of(tmp_path, refused), as_text=True)


def test_numbers_with_an_exponent_and_no_point(tmp_path: Path) -> None:
    """YAML 1.1 takes them for text; settings such as a learning rate are written so."""
    path = tmp_path / "rates.yaml"
    path.write_text("[1e-3, 1e5, -2.E+1, '1e-3', e5, 1e]")
    assert read_yaml(path) == [0.001, 100000.0, -20.0, "1e-3", "e5", "1e"]


def test_an_error_of_yaml_quotes_no_line(tmp_path: Path) -> None:
    with pytest.raises(
        ReadingError, match="mapping values are not allowed here in line 2, column 12"
    ) as error:
        read_yaml(yaml_of(tmp_path, "a: 1\nb: precious: x\n"))
    assert "precious" not in str(error.value)
