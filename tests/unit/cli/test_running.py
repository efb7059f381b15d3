"""The setups that options name."""

import pytest

from dear.cli.run import make_setups
from dear.errors import SettingsError
from dear.evaluation.resolve import MethodSetup
from dear.methods.coop import CoOpSettings
from dear.methods.registry import METHODS, option_groups
from tests.unit.cli.sample import parse


def test_all_methods_each_with_its_settings() -> None:
    settings = {group: METHODS[name].settings() for group, name in option_groups().items()}
    settings["coop"] = CoOpSettings(tokens=7)
    setups = make_setups(list(METHODS), settings, ["roles", "shuffled"])
    assert list(dict.fromkeys(setup.method for setup in setups)) == list(METHODS)
    assert MethodSetup("coop", settings=CoOpSettings(tokens=7)) in setups
    assert [setup.role_variant for setup in setups if setup.method == "dear"] == ["roles", "shuffled"]
    assert make_setups(["coop"], settings) == (MethodSetup("coop", settings=CoOpSettings(tokens=7)),)


def test_a_setting_of_a_method_that_is_not_run_is_refused_at_its_default_too() -> None:
    settings = {group: METHODS[name].settings() for group, name in option_groups().items()}
    settings["coop"] = CoOpSettings(tokens=4)
    with pytest.raises(SettingsError, match=r"--coop\.tokens applies to coop"):
        make_setups(["dear"], settings)


def test_shared_options_are_the_same_in_every_command_of_a_protocol() -> None:
    one, two = (parse("run", name, "--jobs", "2", "--dry-run") for name in ("few-shot", "base-to-novel"))
    assert (one["machines"], one["options"]) == (two["machines"], two["options"])
    assert one["machines"].jobs == 2
    assert one["dry_run"]
