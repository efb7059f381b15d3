"""The map of docs/architecture.md: each path and name that it gives exists, each package has its row."""

import re
import tomllib

import pytest

from tests.documented import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "dear"
PATHS = sorted({span for span in re.findall(r"`([\w/.-]+)`", PAGE) if "/" in span or span.endswith(".py")})


@pytest.mark.parametrize("path", PATHS)
def test_a_path_exists(path: str) -> None:
    assert any((folder / path).exists() for folder in (SOURCE, ROOT))


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
