"""The plans that options name."""

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
    assert [plan.mask for plan in plans if plan.method == "dear"] == ["roles", "shuffled"]
    assert plans_of(["coop"], settings) == (Plan("coop", settings=CoOpSettings(tokens=7)),)
