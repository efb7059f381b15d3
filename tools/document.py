"""Write docs/cli.md from the commands' own help, and the table of limits in docs/limits.md:
`python -m tools.document [--check]`.

Run it in the root of the repository.
"""

import argparse
import re
import sys
from pathlib import Path

from dear.cli.main import load_app
from dear.cli.registry import COMMANDS, load_command
from dear.limits import LIMITS, variable

PAGE, LIMITED = Path("docs/cli.md"), Path("docs/limits.md")
HEADER = """# The command line

Generated from the commands by `make docs`; `make check` fails when it is out of date. Do not edit.

A list is typed with commas, `--seeds 1,2,3`. What two commands have in common stands where it is first.
The settings of methods are those of [`dear fit`](#dear-fit); `dear fit --method NAME --help` explains them.

"""
SETTINGS = "--[KEYWORD] METHODSETTINGS"
"""How cyclopts shows the settings of all methods where they are not listed."""
GROUP_OF_OPTIONS = re.compile(r"^(\*\*[^*]+\*\*):\n\n((?:[* ] .*\n)+)", re.M)


def write_page() -> str:
    """The page as Markdown, with each group of options once."""
    app = load_app(["fit", "--method", "all", "--help"])
    for name in COMMANDS:
        load_command(app, name.split())
    first_in = dict[str, str]()
    sections = re.split(r"^(?=##+ dear )", app.generate_docs(), flags=re.M)
    for number, section in enumerate(sections):
        heading = section.partition("\n")[0].lstrip("# ")

        def refer(group: re.Match[str], heading: str = heading) -> str:
            first = first_in.setdefault(group[0], heading)
            return (
                group[0] if first == heading else f"{group[1]}: as [`{first}`](#{first.replace(' ', '-')}).\n"
            )

        sections[number] = GROUP_OF_OPTIONS.sub(refer, section).replace(SETTINGS, "--METHOD.SETTING")
    return HEADER + "".join(sections).partition("\n")[2].lstrip()


def limits_table() -> str:
    """The table of limits as Markdown."""
    rows = [
        f"| `{variable(name)}` | {bound.default:,} | {bound.what} | {bound.without} |"
        for name, bound in LIMITS.items()
    ]
    head = ["| variable | limit | what it limits | without it |", "| --- | ---: | --- | --- |"]
    return "\n".join(["", *head, *rows, ""])


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
    for place, wanted in ((PAGE, write_page()), (LIMITED, limited)):
        if not check:
            place.write_text(wanted, encoding="utf-8")
        elif not place.exists() or place.read_text(encoding="utf-8") != wanted:
            print(f"{place} is out of date: run `make docs` and commit it", file=sys.stderr)
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
