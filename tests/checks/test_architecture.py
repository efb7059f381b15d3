"""The map of docs/architecture.md: each path exists, and the files of a row have the names that it gives."""

import re
import tomllib

import pytest

from tests.documented import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "dear"
MAP = PAGE[PAGE.index("## Where to change what") : PAGE.index("## Compatibility")]
ROWS = [
    line.strip("| ").split(" | ", 1)
    for line in MAP.splitlines()
    if line.startswith("| ") and not line.startswith(("| To |", "| --- |"))
]
FOR_EACH = re.compile(r"NAME|\*")
"""What stands for the files of any method, protocol or command."""


def code_of(row: str) -> tuple[list[str], list[str]]:
    """The paths and the Python names of a row."""
    spans = re.findall(r"`([^`]+)`", row)
    paths = [span for span in spans if re.search(r"/|\.py$", span) and " " not in span]
    names = [span for span in spans if re.fullmatch(r"\w+(\.\w+)?", span)]
    return paths, [name for name in names if name not in paths and name != "__init__"]


@pytest.mark.parametrize("row", [touch for _, touch in ROWS], ids=[to for to, _ in ROWS])
def test_a_row_names_what_there_is(row: str) -> None:
    paths, names = code_of(row)
    files = []
    for path in paths:
        pattern = FOR_EACH.sub("*", path).rstrip("/")
        matches = [*SOURCE.glob(pattern), *ROOT.glob(pattern)]
        assert matches, path
        files += [file for file in matches if file.suffix in (".py", ".md", ".j2")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for name in names:
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", text), f"{name} is in none of {paths}"


def test_the_map_is_long() -> None:
    assert len(ROWS) > 45


def test_no_row_is_there_twice() -> None:
    assert len({to for to, _ in ROWS}) == len(ROWS)


def test_the_table_of_packages_has_them_all_in_order() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    wanted = [name.strip("()") for layer in layers for name in layer.split(" | ")]
    part = PAGE[PAGE.index("| Package |") : PAGE.index("`tools/` runs")]
    first = [line.strip("| ").split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
    names = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert {*names} == {*wanted}
    assert names[:12] == wanted[:12]
    figure = (ROOT / "docs/images/layers.svg").read_text(encoding="utf-8")
    assert re.findall(r'font-weight="600">([^<]+)<', figure) == [layer.strip("()") for layer in layers]


def test_the_files_of_the_table_of_packages_exist() -> None:
    for package, names in re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.M):
        for name in re.findall(r"`(\w+)/?`", names):
            folder = SOURCE / package
            assert (folder / name).is_dir() or (folder / f"{name}.py").is_file(), name
