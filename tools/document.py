"""Write docs/cli.md from the commands' own help, and the table of limits in docs/limits.md:
`python -m tools.document [--check]`.

Run it in the root of the repository.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from dear.cli.help import help_of_methods, help_text
from dear.cli.main import overview
from dear.cli.parsing import build_parser
from dear.cli.registry import COMMANDS, Command
from dear.limits import LIMITS, SETTABLE, variable

PAGE, LIMITED = Path("docs/cli.md"), Path("docs/limits.md")
HEADER = """# The command line

Generated from `--help-all` by `make docs`; `make check` fails when it is out of date. Do not edit.
"""


def page(commands: Mapping[str, Command]) -> str:
    """The page as Markdown: the overview, each command's help, then the settings of all methods."""
    sections = [HEADER, _section("dear", overview(commands))]
    for name, command in commands.items():
        parser = build_parser(name, command.load()[0])
        sections.append(_section(f"dear {name}", help_text(parser, everything=True)))
    fit = build_parser("fit", commands["fit"].load()[0])
    sections.append(_section("Settings of the methods", help_of_methods(fit)))
    return "\n".join(sections)


def limits_table() -> str:
    """The table of limits as Markdown."""
    rows = [
        f"| {f'`{variable(name)}`' if name in SETTABLE else ''} | {bound.default:,} | {bound.what} |"
        for name, bound in sorted(LIMITS.items(), key=lambda item: item[0] not in SETTABLE)
    ]
    return "\n".join(["", "| Variable | Limit | What it limits |", "| --- | ---: | --- |", *rows, ""])


def with_table(page: str, name: str, table: str) -> str:
    """A page with the text between a table's markers replaced. Raises ValueError if it lacks a marker."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if not 0 <= page.find(begin) < page.find(end):
        raise ValueError(f"the page has no markers of the table {name}: {begin} and, below it, {end}")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> int:
    """Write the generated docs, or with --check only report whether they are up to date."""
    parser = argparse.ArgumentParser(description="Write the generated parts of the docs.")
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date; write nothing")
    check = parser.parse_args().check
    limited = with_table(LIMITED.read_text(encoding="utf-8"), "limits", limits_table())
    stale = False
    for place, wanted in ((PAGE, page(COMMANDS)), (LIMITED, limited)):
        if not check:
            place.write_text(wanted, encoding="utf-8")
        elif not place.exists() or place.read_text(encoding="utf-8") != wanted:
            print(f"{place} is out of date: run `make docs` and commit it", file=sys.stderr)
            stale = True
    return int(stale)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
