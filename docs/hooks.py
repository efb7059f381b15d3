"""Hooks of mkdocs: the repository's Markdown, written for its code host, as pages of the site.

README is the front page. Whatever a page links to outside of docs/ becomes a page too: Markdown as it is, a
notebook as its cells, another file as a block of code, a folder as its files. Lists are indented as
Python-Markdown wants them.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
ITEM = re.compile(r"([-*+] +|\d+[.)] +)\S")
BADGE = re.compile(r"^\[!\[.*\n", re.M)
NAME = re.compile(r"^\| `(dear\.[A-Za-z]\w*)` \|", re.M)
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", "Containerfile": "docker"}
ALWAYS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
_origins: dict[str, str] = {}
"""The places in the repository of the pages that are not from docs/, by their places in the site's source."""


def page_of(place: str) -> str:
    """Where the site's source has a file or, with a slash at its end, a folder of the repository."""
    if place == "README.md":
        return "index.md"
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    return place if place in ALWAYS else f"source/{place.rstrip('/').removesuffix('.md')}.md"


def targets(text: str, place: str) -> set[str]:
    """Files and folders of the repository that the Markdown of the file ``place`` links to."""
    found = (
        posixpath.normpath(posixpath.join(posixpath.dirname(place), link)) for link, _ in LINK.findall(text)
    )
    known = (one for one in found if not one.startswith("..") and (ROOT / one).exists())
    return {f"{one}/" if (ROOT / one).is_dir() else one for one in known}


def relink(text: str, place: str) -> str:
    """The Markdown of the file ``place`` with its links as in the site's source; unknown ones are kept."""

    def moved(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        [*known] = targets(f"]({link})", place)
        return (
            posixpath.relpath(page_of(known[0]), posixpath.dirname(page_of(place)) or ".") + anchor
            if known
            else link
        )

    return LINK.sub(moved, text)


def relist(lines: list[str]) -> list[str]:
    """Lists with contents four spaces in and an empty line before them, as Python-Markdown reads them."""
    result: list[str] = []
    at, fence = 0, ""
    while at < len(lines):
        line = lines[at]
        at += 1
        mark = re.match(r"`{3,}|~{3,}", line)
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[0]
        item = None if fence else ITEM.match(line)
        if not item:
            result.append(line)
            continue
        if result and result[-1].strip() and not result[-1].startswith("    ") and not ITEM.match(result[-1]):
            result.append("")
        width, own = len(item[1]), [line[len(item[1]) :]]
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" " * width)):
            own.append(lines[at][width:])
            at += 1
        first, *others = relist(own)
        result.append(item[1].rstrip().ljust(4) + first)
        result += [f"    {other}".rstrip() for other in others]
    return result


def outside(place: str) -> str:
    """A file or folder outside of docs/ as Markdown, without the code host's badges."""
    path = ROOT / place
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if one.suffix in {".py", ".ipynb", ".md"})
        return f"# {path.name.capitalize()}\n\n" + "".join(_listed(one) for one in files)
    text = path.read_text(encoding="utf-8")
    return BADGE.sub("", text) if path.suffix == ".md" else f"# {path.name}\n\n{_block(path)}"


def _listed(path: Path) -> str:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        parts = (
            f"```python\n{text}\n```"
            if cell["cell_type"] == "code"
            else re.sub("^#", "###", text, flags=re.M)
            for cell in cells
            if (text := "".join(cell["source"]))
        )
        return f"## {path.name}\n\n" + "\n\n".join(parts) + "\n\n"
    if path.suffix == ".md":
        return re.sub("^#", "##", path.read_text(encoding="utf-8"), flags=re.M) + "\n\n"
    return f"## {path.name}\n\n{_block(path)}"


def _block(path: Path) -> str:
    language = LANGUAGES.get(path.suffix) or LANGUAGES.get(path.name, "text")
    return f"````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of docs/."""
    from mkdocs.structure.files import File, InclusionLevel

    _origins.clear()
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    waiting = [*ALWAYS, *sorted(set().union(*(targets(text, place) for place, text in texts.items())))]
    for place in waiting:
        if place.startswith("docs/") or page_of(place) in _origins:
            continue
        _origins[page_of(place)] = place
        content = outside(place)
        if place.endswith((".md", "/")):
            waiting += sorted(targets(content, place))
        page = File.generated(config, page_of(place), content=content)
        if place not in ALWAYS:
            page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links, lists, and names of the public API, which lead to their pages."""
    place = _origins.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if place == "docs/api.md":
        markdown = NAME.sub(r"| [`\1`][\1] |", markdown)
    return "\n".join(relist(relink(markdown, place).split("\n")))
