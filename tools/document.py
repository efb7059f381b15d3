"""Write docs/cli.md from the commands' own help, and the table of limits in docs/limits.md:
`python -m tools.document [--check]`.

Run it in the root of the repository.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from cyclopts import Argument

from dear.cli.help import CommandHelp
from dear.cli.main import overview
from dear.cli.parsing import build_parser
from dear.cli.registry import COMMANDS, Command
from dear.limits import LIMITS, variable
from dear.methods.registry import option_groups

PAGE, LIMITED = Path("docs/cli.md"), Path("docs/limits.md")
HEADER = """# The command line

Generated from the commands by `make docs`; `make check` fails when it is out of date. Do not edit.

An option that three commands or more describe alike is listed once, under [shared options](#shared-options).
`[options]` in a usage stands for both kinds; a list is typed with commas, `--seeds 1,2,3`.
`dear COMMAND --help` shows what most people set, and `dear COMMAND --help-all` everything.
"""
COMMANDS_THAT_SHARE = 3
"""The least number of commands that describe an option alike for it to be shared. Of several descriptions of
one name, the most frequent is shared: a name in the list of shared ones has one meaning.
"""
EVERYONE, RUNS, OTHERS = "Every command", "Runs", "Several commands"


def page(commands: Mapping[str, Command]) -> str:
    """The page as Markdown: the overview, what each command has of its own, the options that several share,
    the settings of all methods.
    """
    helps = {name: CommandHelp(build_parser(name, command.load()[0])) for name, command in commands.items()}
    shared = Shared(helps)
    sections = [HEADER, f"## dear\n\n```text\n{overview(commands)}\n```\n"]
    sections += [shared.command(described) for described in helps.values()]
    fit = build_parser("fit", commands["fit"].load()[0])
    sections += ["## Shared options\n", *shared.sections()]
    sections += ["## Settings of the methods\n", *settings_of_methods(CommandHelp(fit), shared.methods)]
    return "\n".join(sections)


def settings_of_methods(described: CommandHelp, groups: Sequence[str]) -> list[str]:
    """The settings that several methods describe alike, then those of each method alone."""
    items = {
        group: [_item(described, option).replace(f"{group}.", "--METHOD.") for option in options]
        for group in groups
        if (options := described.groups.get(group))
    }
    uses = Counter(item for listed in items.values() for item in listed)
    alike = [item for item in uses if uses[item] >= COMMANDS_THAT_SHARE]
    sections = ["\n".join(["### Settings of several methods\n", *alike, ""])]
    for group, listed in items.items():
        sections.append(f"### {described.titles[group].capitalize()}\n")
        own = [item.replace("--METHOD.", f"{group}.") for item in listed if item not in alike]
        others = [f"`{item.split('.')[1].split()[0].strip(',`')}`" for item in listed if item in alike]
        sections += ["\n".join([*own, ""])] if own else []
        sections += [f"As [several](#settings-of-several-methods): {', '.join(others)}.\n"] if others else []
    return sections


class Shared:
    """The options that several commands describe alike.

    Attributes:
        users: The names of the commands that have an option, by the option's text.
        groups: The text of a group of options that two commands or more have, by its name ("--train").
    """

    def __init__(self, helps: Mapping[str, CommandHelp]) -> None:
        self.commands = len(helps)
        self.methods = [f"--{name.replace('_', '-')}" for name in option_groups()]
        users: dict[str, list[str]] = {}
        names_of_options: dict[str, str] = {}
        groups: dict[str, list[CommandHelp]] = {}
        for name, described in helps.items():
            for option in described.keywords:
                item = _item(described, option)
                names_of_options[item] = option.name
                users.setdefault(item, []).append(name)
            for group in described.titles.keys() - {*self.methods}:
                groups.setdefault(group, []).append(described)
        most = {names_of_options[text]: text for text in sorted(users, key=lambda text: len(users[text]))}
        self.users = {
            text: names
            for text, names in users.items()
            if len(names) >= COMMANDS_THAT_SHARE and most[names_of_options[text]] == text
        }
        self.groups = {
            group: f"{first.titles[group]}:\n\n{_items(first, first.groups[group])}"
            for group, (first, *others) in sorted(groups.items())
            if others
        }

    def command(self, described: CommandHelp) -> str:
        """The section of a command: what it has of its own, and the names of what it shares."""
        keywords = {option.name: _item(described, option) for option in described.keywords}
        shared = [name for name, text in keywords.items() if text in self.users]
        only_here = [text for text in keywords.values() if text not in self.users]
        parts = [f"## {described.name}\n", f"```text\n{described.usage()}\n```\n"]
        parts += [f"{paragraph}\n" for paragraph in described.description()]
        listed = [*(_item(described, option) for option in described.positional), *only_here]
        if listed:
            parts.append("\n".join([*listed, ""]))
        for group, title in described.titles.items():
            if group not in {*self.groups, *self.methods}:
                parts += [f"{title}:\n", _items(described, described.groups[group])]
        names = []
        for title, texts in self.lists().items():
            common = [name for name in shared if keywords[name] in texts]
            whole = title != OTHERS and len(common) == len(texts)
            names += [f"[{title.lower()}](#{_anchor(title)})"] if whole else [f"`{name}`" for name in common]
        names += [
            f"[`{group}.*`](#{_anchor(_heading(group))})"
            for group in described.titles
            if group in self.groups
        ]
        if {*self.methods} & {*described.titles}:
            names.append("[settings of methods](#settings-of-the-methods)")
        return "\n".join([*parts, f"Shared: {', '.join(names)}.\n"])

    def lists(self) -> dict[str, list[str]]:
        """The texts of the shared options, by which commands have them."""
        lists: dict[str, list[str]] = {EVERYONE: [], RUNS: [], OTHERS: []}
        for text, names in self.users.items():
            title = RUNS if all(name.startswith("run ") for name in names) else OTHERS
            lists[EVERYONE if len(names) == self.commands else title].append(text)
        return lists

    def sections(self) -> list[str]:
        """The shared options, by which commands have them, then the groups."""
        return [
            *("\n".join([f"### {title}\n", *texts, ""]) for title, texts in self.lists().items()),
            *(f"### {_heading(group)}\n\n{text}" for group, text in self.groups.items()),
        ]


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
    for place, wanted in ((PAGE, page(COMMANDS)), (LIMITED, limited)):
        if not check:
            place.write_text(wanted, encoding="utf-8")
        elif not place.exists() or place.read_text(encoding="utf-8") != wanted:
            print(f"{place} is out of date: run `make docs` and commit it", file=sys.stderr)
            stale = True
    return int(stale)


def _heading(group: str) -> str:
    return f"Group {group.strip('-')}"


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _items(described: CommandHelp, options: Sequence[Argument]) -> str:
    return "\n".join([*(_item(described, option) for option in options), ""])


def _item(described: CommandHelp, option: Argument) -> str:
    """An option as an item of a list, whose text a browser breaks where there is no room."""
    typed, about = described.described(option)
    return f"- `{typed}` {about}"


if __name__ == "__main__":
    sys.exit(main())
