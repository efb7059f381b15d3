"""The public text format: layers counted from 0 there and from 1 here."""

from pathlib import Path

import pytest

from dear.errors import DataError, OutputError, SettingsError
from dear.roles.textspan_format import in_layers, layer_range, read_textspan, write_textspan

RULE = "-" * 18
TEXT = f"""{RULE}
Layer 7, Head 0
{RULE}
A red thing
side dish 
{RULE}
Layer 7, Head 1
{RULE}
An owl — at night
{RULE}
Layer 8, Head 0
{RULE}
One
{RULE}
Layer 8, Head 1
{RULE}
Two
{RULE}
Current accuracy: 0.43
Number of texts: 834
"""
HEADS = {(8, 0): ("A red thing", "side dish"), (8, 1): ("An owl — at night",), (9, 0): ("One",)}
HEADS[9, 1] = ("Two",)


def test_read_and_write(tmp_path: Path) -> None:
    path = tmp_path / "spans.txt"
    path.write_text(TEXT, encoding="utf-8")
    assert read_textspan(path) == HEADS
    write_textspan(tmp_path / "again.txt", HEADS)
    assert read_textspan(tmp_path / "again.txt") == HEADS
    assert (
        (tmp_path / "again.txt")
        .read_text(encoding="utf-8")
        .startswith(f"{RULE}\nLayer 7, Head 0\n{RULE}\nA red")
    )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again.txt", "spans.txt"]
    with pytest.raises(OutputError, match="cannot write"):
        write_textspan(path / "where.txt", HEADS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no head"),
        ("a phrase\nLayer 0, Head 0\n", "line 1: 'a phrase'"),
        ("Layer 0, Head 0\nx\nLayer 0, Head 0\n", "line 3: Layer 0, Head 0"),
    ],
)
def test_other_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "spans.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_textspan(tmp_path / "spans.txt")


def test_layers() -> None:
    assert layer_range("9-12") == (9, 10, 11, 12)
    assert layer_range("12") == (12,)
    assert layer_range("9, 11-12") == (9, 11, 12)
    assert in_layers(HEADS, [9]) == {(9, 0): ("One",), (9, 1): ("Two",)}
    for text in ("", "0-3", "5-3", "nine", "9-", "9,9", "-3"):
        with pytest.raises(SettingsError, match="layers"):
            layer_range(text)
