"""What the pages tell the reader to type exists: commands, options, values, scripts, targets, extras."""

import os
import re
import shlex
import tomllib
from collections.abc import Sequence
from functools import cache

import pytest
import yaml

from dear.cli.main import load_app
from dear.cli.registry import COMMANDS, load_command
from dear.methods.registry import METHODS, methods_on
from tests.documented import PAGES, ROOT, Shown, commands, mentions
from tests.helpers.commands import parse_arguments
from tools.generate_docs import MODELS, SECTIONS

SHOWN = [one for page in PAGES for one in commands(page)]
MENTIONED = [one for page in PAGES for one in mentions(page)]
DEAR = [one for one in SHOWN if one.words[0] == "dear"]
OTHERS = [one for one in SHOWN + MENTIONED if one.words[0] != "dear"]
TARGETS = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)}
EXTRAS = {
    *tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
}
ELSEWHERE = {"source", "curl", "docker", "git", "cd", "hf", "pre-commit"}
"""Programs whose arguments are not ours to check."""


@cache
def known_options(*words: str) -> frozenset[str]:
    """The options of the command that the words name, or of every command."""
    app = load_app(words)
    commands = (load_command(app, words), app.meta)
    return frozenset(
        name
        for command in commands
        if command.default_command
        for argument in command.assemble_argument_collection()
        for name in argument.names
    ) | {"--help", "--version"}


def command_of(words: Sequence[str]) -> tuple[str, ...]:
    """The words that name a command, of one or two."""
    return tuple(words[:2] if " ".join(words[:2]) in COMMANDS else words[:1])


def test_the_pages_show_commands() -> None:
    """So that a change of their form does not empty the tests below."""
    assert {"README.md", "docs/start.md", "docs/use.md"} <= {one.page for one in DEAR}
    assert len(DEAR) > 20
    assert len(MENTIONED) > 50


def test_every_option_says_what_it_sets() -> None:
    """A line that is indented too far in a docstring becomes part of the option before it."""
    options = re.findall(r"^\* `-.+", (ROOT / "docs/cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(options) > 100
    assert not [option for option in options if not re.search(r"`: +[^*\s]", option)]


@pytest.mark.parametrize("one", DEAR, ids=str)
def test_a_command_is_valid(one: Shown) -> None:
    """Options exist and values are of their types; files need not exist, and nothing is run."""
    assert " ".join(command_of(one.words[1:])) in COMMANDS
    parse_arguments(one.words[1:])


def test_mentioned_commands_have_these_options() -> None:
    for one in MENTIONED:
        name = command_of(one.words[1:])
        if one.words[0] != "dear" or " ".join(name) not in COMMANDS:
            continue
        for option in (word.partition("=")[0] for word in one.words if word.startswith("--")):
            assert option in known_options(*name), f"{one}: {option}"


def test_other_commands_have_what_they_name() -> None:
    for one in OTHERS:
        program, *rest = one.words
        if program == "make":
            assert rest[0] in TARGETS, one
        elif program == "python" and rest[0] == "-m":
            place = ROOT / rest[1].replace(".", "/")
            ours = [
                path
                for path in (place, ROOT / "src" / place.relative_to(ROOT))
                if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
            ]
            assert ours or rest[1] in {"pytest", "pip", "venv"}, one
        elif program == "python":
            shared = ROOT / "benchmarks/measure.py"  # which has options of several of its neighbors
            text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / rest[0], shared))
            for option in (word.partition("=")[0] for word in rest[1:] if word.startswith("--")):
                assert f'"{option}"' in text, f"{one}: {option}"
        elif program in ("pip", "uv"):
            named = [
                extra for group in re.findall(r"\[([\w,]+)\]", " ".join(rest)) for extra in group.split(",")
            ]
            assert {*named} <= EXTRAS, one
        else:
            assert program in ELSEWHERE, f"{one}: say what {program} is"


def test_workflows_run_what_exists() -> None:
    """And the script that they call, which is all that the tests need."""
    workflows = [
        yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
    ]
    steps = [step for flow in workflows for job in flow["jobs"].values() for step in job["steps"]]
    called = {step["run"] for step in steps if "name" not in step and "run" in step}
    assert called == {".ci/run", "make site", "make release"}
    assert os.access(ROOT / ".ci/run", os.X_OK)
    script = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    lines = [shlex.split(line) for line in (*called, *script)]
    targets = {words[1] for words in lines if words[:1] == ["make"]}
    assert {"check", "test", "test-long", "site", "release"} <= targets <= TARGETS


PACKAGED = [name for name, method in METHODS.items() if not method.module]


PAGES_WITH_A_COUNT = ("README.md", "CHANGELOG.md", "docs/choose.md", "docs/methods.md", "docs/roadmap.md")


@pytest.mark.parametrize("page", PAGES_WITH_A_COUNT)
def test_pages_count_the_methods(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    counts = {
        int(number)
        for number in re.findall(
            r"(?:^There are |\[|^- |^\| methods \| )(\d+)(?: methods|, zero-shot)", text, re.MULTILINE
        )
    }
    assert counts == {len(PACKAGED)}, f"{page} counts {counts} methods; there are {len(PACKAGED)}"


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/methods.md", "# The methods"),
        ("recipes/methods/README.md", "## Published settings (the defaults)"),
    ],
)
def test_each_method_has_its_row(page: str, heading: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").partition(heading + "\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    lacking = [name for name in PACKAGED if name not in rows and METHODS[name].trains]
    assert not lacking, f"the table under {heading!r} of {page} has no row for {', '.join(lacking)}"


def test_the_page_of_models_has_the_methods_of_today() -> None:
    """The rest of the page takes minutes to write: `python -m tools.generate_docs --models`."""
    text = (ROOT / MODELS).read_text(encoding="utf-8")
    for access, (title, _) in SECTIONS.items():
        (methods,) = re.findall(rf"^## {title}\n[^#]*? Methods: (.*)\.$", text, re.MULTILINE)
        named = [name for name in methods_on(*access) if name in PACKAGED]
        assert methods == ", ".join(named), f"{MODELS}, {title!r}"


def test_messages_name_extras_that_there_are() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = {extra for text in sources for extra in re.findall(r"installation\('(\w+)'\)", text)}
    assert named
    assert named <= EXTRAS


def test_the_table_of_extras_has_all_of_them() -> None:
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)} == EXTRAS
