"""The setups that options name."""

from dear.cli.run import make_setups
from dear.evaluation.resolve import MethodSetup
from dear.methods.coop import CoOpSettings
from dear.methods.registry import METHODS, option_groups


def test_all_methods_each_with_its_settings() -> None:
    settings = {group: METHODS[name].settings() for group, name in option_groups().items()}
    settings["coop"] = CoOpSettings(tokens=7)
    setups = make_setups(list(METHODS), settings, ["roles", "shuffled"])
    assert list(dict.fromkeys(setup.method for setup in setups)) == list(METHODS)
    assert MethodSetup("coop", settings=CoOpSettings(tokens=7)) in setups
    assert [setup.role_variant for setup in setups if setup.method == "dear"] == ["roles", "shuffled"]
    assert make_setups(["coop"], settings) == (MethodSetup("coop", settings=CoOpSettings(tokens=7)),)
