"""The pages of the study, with their tables and numbers: what has no rows stays as it is."""

import re
from collections.abc import Callable, Sequence

from benchmarks.study import tables, variants
from benchmarks.study.runs import ROOT, NoRuns, read, read_photographs
from benchmarks.study.values import value
from benchmarks.study.versions import rows as known_versions
from dear.world.names import downstream_names

FILES = {
    "base_to_novel": "",
    "class_counts": "fewer classes",
    "few_shot": "few-shot",
    "photographs": "photographs",
    "variants": "variants",
    "role_controls": "tables of roles",
}
"""The files of rows, and what the table of versions calls them."""


def versions() -> list[str]:
    """Which runs each version of the code made."""
    small, told = downstream_names(), dict[str, list[str]]()
    for name, title in FILES.items():
        runs = read_photographs() if name == "photographs" else read(name)
        groups = {title: runs}
        if name == "base_to_novel":
            groups = {"small": runs[runs.data.isin(small)], "large": runs[~runs.data.isin(small)]}
        for words, group in groups.items():
            for code, of in group.groupby("code"):
                names = sorted({*of.method})
                many = name in ("role_controls", "variants")
                told.setdefault(code, []).append(f"{words}: {len(names) if many else ', '.join(names)}")
    known = {row["code"]: row for row in known_versions()}
    lines = [
        [known[code]["date"], f"`{known[code]['commit']}`", f"`{code}`", "; ".join(told[code])]
        if code in known
        else ["unknown", "", f"`{code}`", "; ".join(told[code])]
        for code in sorted(told, key=lambda code: [*known].index(code) if code in known else -1)
    ]
    return tables.table("version | commit | code | runs", "llll", lines)


TABLES: dict[str, Callable[[], list[str]]] = {
    "main": tables.main_table,
    "leads": tables.leads,
    "small-apart": lambda: tables.apart_table("small"),
    "small-joint": lambda: tables.joint_table("small"),
    "small-few-shot": tables.few_shot,
    "few-shot-images": tables.few_shot_images,
    "part-clip-lora": lambda: tables.part_table("clip-lora"),
    "role-controls": tables.role_controls,
    "large-apart": lambda: tables.apart_table("large"),
    "large-joint": lambda: tables.joint_table("large"),
    "class-counts": tables.class_counts,
    "photographs": tables.photographs,
    "masks": variants.masks,
    "variants": variants.variants,
    "readings": variants.readings,
    "versions": versions,
}
MERGED = ("small-few-shot", "variants", "readings")
"""Tables that keep lines of runs that have no rows: they were made before rows were kept."""


def merge(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """A table with the new lines in place of those with the same first cell, and the others as they were,
    with empty cells in columns that they lack.
    """
    if len(new) < 3:
        return [*old]
    columns = new[0].count(" |")
    padded = [line + "  |" * (columns - line.count(" |")) for line in old[2:]]
    lines = {line.split(" | ")[0]: line for line in (*padded, *new[2:])}
    return [*new[:2], *lines.values()]


PAGES = [
    *(ROOT / "docs" / name for name in ("study.md", "choose.md", "roles.md", "concepts.md")),
    *(ROOT / name for name in ("README.md", "recipes/study/TABLES.md")),
]
TABLE = re.compile(r"^( *)(<!-- ([\w-]+): begin -->)\n(.*?)^ *(<!-- \3: end -->)", re.DOTALL | re.MULTILINE)
WITHOUT_ROWS = "tables and numbers without rows"
NUMBER = re.compile(r"(<!-- study: ([^>]+) -->)(.*?)(<!-- end -->)")


def written(page: str) -> tuple[str, list[str]]:
    """A page with its tables and numbers, and which of these have no rows: `WITHOUT_ROWS` is how many."""
    missing = list[str]()

    def write_table(found: re.Match[str]) -> str:
        indent, begin, name, old, end = found.groups()
        if name not in TABLES:
            raise ValueError(f"there is no table {name!r}")
        try:
            lines = TABLES[name]()
        except NoRuns:
            missing.append(f"table {name}")
            return found[0]
        if name in MERGED:
            lines = merge([line.strip() for line in old.splitlines()], lines)
        return "\n".join(indent + line if line else line for line in (begin, *lines, end))

    def write_number(found: re.Match[str]) -> str:
        try:
            return found[0] if found[2] == WITHOUT_ROWS else f"{found[1]}{value(found[2])}{found[4]}"
        except NoRuns:
            missing.append(found[2])
            return found[0]

    text = NUMBER.sub(write_number, TABLE.sub(write_table, page))
    count = f"<!-- study: {WITHOUT_ROWS} -->{len(missing)}<!-- end -->"
    return re.sub(f"<!-- study: {WITHOUT_ROWS} -->.*?<!-- end -->", count, text), missing
