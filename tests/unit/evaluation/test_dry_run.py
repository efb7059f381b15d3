"""A dry run lists runs, their work, and all that is missing."""

from pathlib import Path

import pytest

from dear.errors import WeightsError
from dear.evaluation import session
from dear.evaluation.dry_run import list_runs
from dear.evaluation.experiment import Machines
from dear.evaluation.launch import launch
from dear.evaluation.resolve import MethodSetup
from tests.unit.evaluation.children import experiment

ZERO = (MethodSetup("zero-shot"),)


def test_a_dry_run_knows_what_has_a_record(tmp_path: Path) -> None:
    launch([experiment(tmp_path / "out", methods=ZERO)], Machines("cpu"))
    planned, reason = list_runs([experiment(tmp_path / "out")], Machines("cpu"))
    assert [(run["method"], run["variant"], run["done"]) for run in planned] == [
        ("zero-shot", None, True), ("dear", "all-mixed", False),
    ]  # fmt: skip
    assert reason == []


def test_a_teacher_without_weights_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a method without roles. What can be known of the others is, and each thing is missing once."""
    launch([experiment(tmp_path / "out", methods=ZERO)], Machines("cpu"))
    sought, load = list[str](), session.load_clip

    def load_but_large(model: str, *given: object, **options: object) -> object:
        sought.append(model)
        if model == "ViT-L-14":
            raise WeightsError("no weights of ViT-L-14")
        return load(model, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "load_clip", load_but_large)
    methods = (
        MethodSetup("promptkd", {"teacher": "ViT-L-14", "teacher_pretrained": "openai"}),
        MethodSetup("dear", roles=tmp_path / "nothing.json"),
        *ZERO,
    )
    planned, missing = list_runs(
        [experiment(tmp_path / "out", methods=methods, seeds=(1, 2))], Machines("cpu")
    )
    assert [(run["method"], run["done"]) for run in planned] == [
        ("promptkd", False), ("dear", False), ("zero-shot", True),
        ("promptkd", False), ("dear", False), ("zero-shot", False),
    ]  # fmt: skip
    assert [run["test_images"] for run in planned] == [8] * 6
    assert len(missing) == 2
    assert all(key in text for key, text in zip(("ViT-L-14", "nothing.json"), missing, strict=True))
    assert sorted(sought) == ["ViT-L-14", "tiny"]
