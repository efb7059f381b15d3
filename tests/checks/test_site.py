"""The documentation site's pages, without building it: `make site` does that and checks the links."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import dear
from tests.documented import PAGES, ROOT


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    found = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_public_name_has_one_entry_in_the_pages_of_the_api() -> None:
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "docs/api").glob("*.md"))
    entries = sorted(name for page in pages for name in re.findall(r"^::: dear\.(\w+)$", page, re.M))
    assert entries == sorted(dear.__all__)


def test_every_page_is_in_the_navigation() -> None:
    named = {
        *re.findall(r"^ +- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    }
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    outside = named - pages - {"index.md"}
    assert pages <= named
    assert all((ROOT / page).is_file() for page in outside)


def anchors(page: Path) -> set[str]:
    """What a link can lead to in a page, by the rule of the code host and of the site."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_to_headings_lead_to_headings() -> None:
    links = [
        (page, (ROOT / page).parent / link if link else ROOT / page, anchor)
        for page in PAGES
        for link, anchor in re.findall(
            r"\]\(([^)\s#:]*)#([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")
        )
    ]
    assert len(links) > 100
    assert not [(page, anchor) for page, target, anchor in links if anchor not in anchors(target)]


@pytest.mark.parametrize(
    ("place", "link", "wanted"),
    [
        ("README.md", "docs/use.md#the-bundle", "use.md#the-bundle"),
        ("README.md", "CONTRIBUTING.md", "CONTRIBUTING.md"),
        ("README.md", "LICENSE", "source/LICENSE.md"),
        ("CONTRIBUTING.md", "README.md", "index.md"),
        ("docs/api/use.md", "../methods.md", "../methods.md"),
        ("docs/use.md", "../examples", "source/examples.md"),
        ("docs/use.md", "../README.md", "index.md"),
        (
            "docs/concepts.md",
            "../src/dear/backbone/tiny/README.md",
            "source/src/dear/backbone/tiny/README.md",
        ),
        ("src/dear/backbone/tiny/README.md", "../../../../docs/concepts.md", "../../../../../concepts.md"),
        ("examples/", "../docs/concepts.md", "../concepts.md"),
        ("docs/concepts.md", "../absent.md", "../absent.md"),  # left for mkdocs to complain of
        ("docs/concepts.md", "https://example.org/docs", "https://example.org/docs"),
        ("docs/concepts.md", "#below", "#below"),
    ],
)
def test_links_lead_to_the_same_thing_in_the_site(
    hooks: ModuleType, place: str, link: str, wanted: str
) -> None:
    assert hooks.relink(f"see [this]({link}).", place) == f"see [this]({wanted})."


def test_lists_are_indented_as_python_markdown_wants_them(hooks: ModuleType) -> None:
    written = (
        "Text:\n- a\n  more\n- b\n\n1. one\n   it has\n   - parts\n     of it\n\n"
        "   ```sh\n   - code\n   ```\nend\n\n```\n- not\n  a list\n```"
    )
    wanted = (
        "Text:\n\n-   a\n    more\n-   b\n\n1.  one\n    it has\n\n    -   parts\n        of it\n\n"
        "    ```sh\n    - code\n    ```\nend\n\n```\n- not\n  a list\n```"
    )
    assert "\n".join(hooks.relist(written.split("\n"))) == wanted
