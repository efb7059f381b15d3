"""Help that one can read: short first, everything on demand, and each shared option once in docs/cli.md."""

import re

import pytest

from dear.cli.help import EXPERT, CommandHelp, help_text
from dear.cli.parsing import build_parser
from dear.cli.registry import COMMANDS
from dear.methods.registry import option_groups
from tests.documented import ROOT

PARSERS = {name: build_parser(name, command.load()[0]) for name, command in COMMANDS.items()}
PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
OPTION = re.compile(r"^  (--[a-z-]+)(?![a-z.-])", re.M)
"""A line of help that begins with an option of the command itself, not of a group such as --train."""
ITEM = re.compile(r"^- `(--[a-z-]+)(?![a-z.-])", re.M)
"""The same on the page."""
LINES = 41
"""What fits a screen: the longest, of `dear run domain-generalization`, has so many."""


@pytest.mark.parametrize("name", PARSERS)
def test_help_fits_a_screen_and_names_what_it_leaves_out(name: str) -> None:
    parser = PARSERS[name]
    text = help_text(parser)
    assert len(text.splitlines()) <= LINES
    listed = {*OPTION.findall(text.partition("\nmore options")[0])}
    options = CommandHelp(parser).names
    (more,) = re.findall(r"^more options, .*:\n((?:  .*\n?)+)", text, re.M)
    named = {option for option in re.split(r",\s+", more.strip()) if not option.endswith(".*")}
    assert listed | named == options
    assert not listed & named
    assert listed & EXPERT == set()
    assert {*OPTION.findall(help_text(parser, everything=True))} == options


def test_options_for_experts_are_options() -> None:
    assert {option for parser in PARSERS.values() for option in CommandHelp(parser).names} >= EXPERT


def section(heading: str) -> str:
    (text,) = re.findall(rf"^{re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return str(text)


@pytest.mark.parametrize("name", PARSERS)
def test_the_page_has_each_option_of_a_command_once(name: str) -> None:
    own, _, names = section(f"## dear {name}").rpartition("\nShared: ")
    shared = {*re.findall(r"`(--[a-z-]+)`", names)}
    for anchor in re.findall(r"\]\(#(every-command|runs)\)", names):
        title = anchor.capitalize().replace("-", " ")
        (part,) = re.findall(rf"^### {title}\n(.*?)^###", PAGE, re.M | re.S)
        shared |= {*ITEM.findall(part)}
    listed = ITEM.findall(own)
    assert {*listed} | shared == CommandHelp(PARSERS[name]).names
    assert not {*listed} & shared


def test_a_shared_option_has_one_description() -> None:
    names = re.findall(r"^- `(--[a-z.-]+)", section("## Shared options"), re.M)
    assert len(names) > 60
    names += (several := re.findall(r"^- `(--METHOD\.[a-z.-]+)", PAGE, re.M))
    assert len(several) > 2
    assert len({*names}) == len(names)


@pytest.mark.parametrize("group", option_groups())
def test_the_page_has_each_setting_of_a_method_once(group: str) -> None:
    method, prefix = option_groups()[group], f"--{group.replace('_', '-')}"
    options = CommandHelp(PARSERS["fit"]).groups.get(prefix, [])
    part = (
        section("## Settings of the methods").partition(f"### Settings of {method}\n")[2].partition("###")[0]
    )
    listed = re.findall(rf"^- `{re.escape(prefix)}\.([a-z0-9-]+)", part, re.M)
    names = re.findall(r"`([a-z0-9-]+)`", part.partition("As [several]")[2])
    assert sorted([*listed, *names]) == sorted(option.name.rpartition(".")[2] for option in options)
