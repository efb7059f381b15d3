"""Retrieval as a protocol: its record, and what it refuses."""

import pytest

from dear.backbone.clip import Clip
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError
from dear.evaluation.protocols.retrieval import Retrieval
from dear.evaluation.records import check_record
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.evaluation.runs import run_one
from dear.methods.dear import DearSettings
from dear.report.protocols import tables_of
from dear.roles.table import RoleTable
from dear.training.settings import TrainSettings
from tests.unit.training.world import noise_dataset, role_table

DEAR = MethodSetup("dear", settings=DearSettings(first=8))


def context(clip: Clip) -> RunContext:
    return RunContext(clip, role_table(clip), TrainSettings(epochs=1))


def test_the_record_of_a_world_task(small_clip: Clip) -> None:
    """It has the fewest test images, 320. The small CLIP has no room for more than the names."""
    task, shared = load_dataset("worn-fabrics", DataSettings(template="{}")), context(small_clip)
    run = shared.resolve(Retrieval(), [task], DEAR, seed=1, shots=1)
    record = run_one(shared, run)
    check_record(record)
    assert record["settings"]["method"]["first"] == 8
    table = record["roles"]["table"]
    assert RoleTable.from_json(table, "the record") == role_table(small_clip)
    assert set(record["results"]["precision"]) == set(record["fusion_weights"])
    (grid,) = tables_of([record])
    by_label = {row.label: row for row in grid.rows}
    at = grid.columns.index("shape")
    (shape,) = [row.cells[at] for label, row in by_label.items() if label == "(chance)"]
    assert shape is not None
    assert shape.mean == pytest.approx(100 * record["results"]["chance"]["shape"])


def test_what_it_cannot_run(small_clip: Clip) -> None:
    shared = context(small_clip)
    with pytest.raises(DataError, match="noise is not a task of the Attribute World"):
        run_one(shared, shared.resolve(Retrieval(), [noise_dataset()], DEAR, seed=1, shots=2))
    with pytest.raises(SettingsError, match="coop has no attribute features"):
        run_one(shared, shared.resolve(Retrieval(), [noise_dataset()], MethodSetup("coop"), seed=1, shots=2))
