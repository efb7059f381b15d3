"""Runs of one method have one role table, unless it is another permutation for each seed."""

import copy
from typing import Any

import pytest

from dear.errors import DataError
from dear.report.protocols import tables_of
from dear.report.records import checked
from tests.unit.report.samples import record, role_table


def seeds(
    source: str = "discovered", *, of_second: str | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """Two seeds of DeAR, the second with changes to the first head of its role table."""
    first, second = role_table(), role_table()
    second["heads"][0] |= changes
    return [
        record("tools", "dear", 0.5, 0.5, seed=1, roles={"source": source, "table": first}),
        record("tools", "dear", 0.7, 0.5, seed=2, roles={"source": of_second or source, "table": second}),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"role": "mixed", "attribute": None}, {"attribute": "shape"}, {"share": {"color": 0.6, "shape": 0.4}}],
)
def test_tables_of_one_source_that_differ_are_not_averaged(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"dear mix different role tables \(.*layer 9 head 0: .*\); "):
        tables_of(seeds(**changes))
    apart = seeds(**changes)
    apart[1]["variant"] = "other roles"  # a column of its own
    assert len(checked(apart)) == 2


def test_attributes_in_another_order_are_another_table() -> None:
    runs = seeds()
    runs[1]["roles"]["table"]["attributes"].reverse()
    with pytest.raises(DataError, match=r"role tables \(attributes: "):
        checked(runs)


def test_what_no_run_depends_on_may_differ() -> None:
    runs = seeds(phrases=["red"], concept="Colour", entropy=0.3)
    assert len(checked(runs)) == 2
    del runs[0]["roles"]["table"]  # as in older records, which are compared by the source
    assert len(checked(runs)) == 2


def test_shuffled_roles_are_others_for_each_seed_but_not_for_each_data_set() -> None:
    roles = [f"shuffled (seed {seed}), from discovered" for seed in (1, 2)]
    runs = seeds(roles[0], of_second=roles[1], role="mixed", attribute=None)
    assert len(checked(runs)) == 2
    other = copy.deepcopy(runs[0])
    other |= {"key": "other", "dataset": {"name": "toys", "identity": "toys"}}
    assert len(checked([*runs, other])) == 3
    other["roles"]["table"]["heads"][0]["attribute"] = "shape"
    with pytest.raises(DataError, match="mix different role tables"):
        checked([*runs, other])
