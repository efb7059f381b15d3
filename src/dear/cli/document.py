"""Write docs/cli.md from the commands' own help: `python -m dear.cli.document [--check]`.

To be run in the root of the repository.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from dear.cli.main import overview
from dear.cli.parsing import build_parser
from dear.cli.registry import COMMANDS, Command

PAGE = Path("docs/cli.md")
HEADER = """# The command line

Generated from `--help` by `make docs`; `make check` fails when it is out of date. Do not edit.
"""


def page(commands: Mapping[str, Command]) -> str:
    """The page as Markdown: the overview, then each command's help."""
    sections = [HEADER, _section("dear", overview(commands))]
    for name, command in commands.items():
        sections.append(_section(f"dear {name}", build_parser(name, command.load()[0]).help()))
    return "\n".join(sections)


def main() -> int:
    """Write the page, or with --check only tell whether it is up to date."""
    parser = argparse.ArgumentParser(description="Write docs/cli.md.")
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date; write nothing")
    check = parser.parse_args().check
    wanted = page(COMMANDS)
    if not check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{PAGE} is out of date: run `make docs` and commit it", file=sys.stderr)
    return 1


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
