"""The plans that options name, and options that have had another name."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from dear.cli.parsing import UsageError, build_parser
from dear.cli.registry import COMMANDS
from dear.cli.running import plans_of
from dear.evaluation.plan import Plan
from dear.methods.coop.settings import CoOpSettings
from dear.methods.registry import METHODS, option_groups


def test_all_methods_each_with_its_settings() -> None:
    settings = {group: METHODS[name].settings() for group, name in option_groups().items()}
    settings["coop"] = CoOpSettings(tokens=7)
    plans = plans_of(["all"], settings, ["roles", "shuffled"])
    assert plans == plans_of(list(METHODS), settings, ["roles", "shuffled"])
    assert list(dict.fromkeys(plan.method for plan in plans)) == list(METHODS)
    assert Plan("coop", settings=CoOpSettings(tokens=7)) in plans
    assert [plan.role_variant for plan in plans if plan.method == "dear"] == ["roles", "shuffled"]
    assert plans_of(["coop"], settings) == (Plan("coop", settings=CoOpSettings(tokens=7)),)


def parsed(command: str, *words: str) -> dict[str, Any]:
    values, _ = build_parser(command, COMMANDS[command].load()[0]).parse(words)
    return values


def test_options_that_have_had_another_name_go_on_to_work() -> None:
    with pytest.warns(UserWarning, match="^--mask is now called --role-variant.$"):
        old = parsed("run base-to-novel", "--mask", "roles,shuffled", "--seeds=2")
    assert old == parsed("run base-to-novel", "--role-variant", "roles,shuffled", "--seeds", "2")
    with pytest.warns(UserWarning, match="^--task is now called --data.$"):
        old = parsed("run retrieval", "--task=stamped-tiles")
    assert old == parsed("run retrieval", "--data", "stamped-tiles")


@pytest.mark.parametrize(
    ("command", "old", "new", "notices"),
    [
        (
            "run base-to-novel",
            "mask: [roles, shuffled]",
            "role_variant: [roles, shuffled]",
            ["--mask is now called --role-variant."],
        ),
        ("run retrieval", "task: [stamped-tiles]", "data: [stamped-tiles]", ["--task is now called --data."]),
        (
            "run base-to-novel",
            '{"mask": [roles], "task": [stamped-tiles], "train": {"epochs": 3}}',
            "role_variant: [roles]\ndata: [stamped-tiles]\ntrain:\n  epochs: 3",
            ["--mask is now called --role-variant.", "--task is now called --data."],
        ),
    ],
)
def test_options_files_may_use_the_old_names(
    command: str, old: str, new: str, notices: list[str], tmp_path: Path
) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(old)
    after.write_text(new)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = parsed(command, "--config", str(before))
    assert [str(one.message) for one in caught] == notices
    assert found == parsed(command, "--config", str(after))


def test_an_options_file_with_an_old_and_a_new_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("mask: [roles]\nrole_variant: [roles]\n")
    with pytest.raises(UsageError, match="'mask' is not accepted"):
        parsed("run base-to-novel", "--config", str(file))


def test_shared_options_are_the_same_in_every_command_of_a_protocol() -> None:
    one, two = (parsed(f"run {name}", "--jobs", "2", "--dry-run") for name in ("few-shot", "base-to-novel"))
    assert (one["machines"], one["options"]) == (two["machines"], two["options"])
    assert one["machines"].jobs == 2
    assert one["options"].dry_run
