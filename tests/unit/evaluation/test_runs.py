"""Many runs: each leaves one record, none is repeated, and a record says what it is of."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dear.backbone import precision
from dear.backbone.clip import Clip, Identity
from dear.data.settings import DataSettings
from dear.errors import DataError, OutputError
from dear.evaluation import runs
from dear.evaluation import trial as protocol
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch.dispatch import planned_runs
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import ResolvedRun, run_name
from dear.evaluation.run_context import RunContext
from dear.evaluation.runs import Runner, run_all, run_one
from dear.evaluation.schema import SCHEMA
from dear.methods.coop import CoOpSettings
from dear.methods.dear import DearSettings
from dear.progress import TrainingStep
from dear.roles.table import HeadRole, RoleTable
from dear.training.settings import TrainOptions, TrainSettings
from dear.writing import UNFINISHED
from tests.unit.training.world import CLASSES, Noise, noise_dataset, role_table

SETTINGS, TRAINING = DearSettings(first=8), TrainSettings(epochs=2, batch=3, lr=1e-2)
ZERO, DEAR = Plan("zero-shot"), Plan("dear", settings=SETTINGS)


def run(clip: Clip, plans: list[Plan], out: Path | None = None, **options: Any) -> list[dict[str, Any]]:
    given: dict[str, Any] = {
        "shots": 2,
        "training": TRAINING,
        "roles": role_table(clip),
    } | options
    return run_all(clip, [noise_dataset()], plans, out=out, **given)


def numbers(record: dict[str, Any]) -> Any:
    epochs = [{k: v for k, v in e.items() if k != "seconds"} for e in record["train"]["epochs"]]
    return [epochs, record["results"], record["fusion_weights"], record["fewshot"]]


def test_a_record_has_all_its_fields(small_clip: Clip) -> None:
    (record,) = run(small_clip, [DEAR])
    assert json.loads(json.dumps(record)) is not None
    assert (record["schema"], record["protocol"], record["method"], record["variant"]) == (
        SCHEMA,
        "base-to-novel",
        "dear",
        None,
    )
    assert (record["seed"], record["shots"]) == (1, 2)
    assert record["settings"]["method"]["first"] == 8
    assert record["settings"]["train"]["epochs"] == 2
    assert record["dataset"]["name"] == "noise"
    assert record["dataset"]["classes"] == [*CLASSES, "blue square"]
    assert record["weights"]["sha256"] == small_clip.identity.sha256
    assert record["roles"] == {"source": "by hand", "table": role_table(small_clip).to_json()}
    assert record["selection"] == {"rule": "last", "epoch": 2}
    assert record["peak_memory"]["resident"] > 1
    assert re.fullmatch("[0-9a-f]{16}", record["key"])
    assert re.fullmatch("[0-9a-f]{12}", record["environment"]["code"])
    assert [epoch["epoch"] for epoch in record["train"]["epochs"]] == [1, 2]
    assert len(record["fewshot"]["indices"]) == 4
    assert set(record["fusion_weights"]) == {"cls", "color", "object"}
    assert record["trainable_parameters"] == 2 * 21 + 5 * 22 + 21 * 17 + 3
    assert set(record["seconds"]) == {"train", "test"}
    assert record["environment"]["torch"]
    base, novel = record["results"]["base"], record["results"]["novel"]
    assert set(base["per_class"]) == set(CLASSES[:2])
    assert set(novel["per_class"]) == {CLASSES[2], "blue square"}
    # The test set has 7, 5, 5, 7 images of the classes.
    by_class = [*base["per_class"].values(), *novel["per_class"].values()]
    assert base["accuracy"] == pytest.approx((7 * by_class[0] + 5 * by_class[1]) / 12)
    assert novel["accuracy"] == pytest.approx((5 * by_class[2] + 7 * by_class[3]) / 12)
    b, n = base["accuracy"], novel["accuracy"]
    assert record["results"]["hm"] == pytest.approx(2 * b * n / (b + n) if b * n else 0)


def test_zero_shot_is_not_trained(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_args: Any, **_options: Any) -> None:
        raise AssertionError("zero-shot was trained")

    monkeypatch.setattr(protocol, "train", never)
    (record,) = run(small_clip, [ZERO])
    assert record["train"] == {"epochs": []}
    assert record["fewshot"] is None
    assert record["fusion_weights"] is None
    assert record["roles"] is None
    assert record["trainable_parameters"] == 0
    with pytest.raises(AssertionError, match="was trained"):
        run(small_clip, [DEAR])


def test_training_sees_base_classes_only(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def watched(method: Any, images: Any, *_args: Any, **_options: Any) -> list[Any]:
        seen.append((method.classnames, images.labels.tolist(), images.load(images.labels * 0).shape))
        return []

    monkeypatch.setattr(protocol, "train", watched)
    run(small_clip, [DEAR])
    assert seen == [(tuple(CLASSES[:2]), [0, 0, 1, 1], (4, 3, 23, 29))]


def test_the_same_seed_gives_the_same_numbers(small_clip: Clip) -> None:
    one, two = run(small_clip, [DEAR], seeds=[1, 2])
    (again,) = run(small_clip, [DEAR])
    assert numbers(one) == numbers(again) != numbers(two)
    # Alone, without the cache that zero-shot and other runs have filled:
    context = RunContext(small_clip, role_table(small_clip), TRAINING)
    alone = run_one(context, context.resolve(BaseToNovel(), [noise_dataset()], DEAR, seed=2, shots=2))
    assert numbers(alone) == numbers(two)


def test_the_masks_are_different_runs(small_clip: Clip, tmp_path: Path) -> None:
    plans = [Plan("dear", mask, SETTINGS) for mask in ("roles", "shuffled", "all-isolated", "all-mixed")]
    records = run(small_clip, plans, tmp_path)  # type: ignore[arg-type]
    assert [record["variant"] for record in records] == [None, "shuffled", "all-isolated", "all-mixed"]
    losses = [record["train"]["epochs"][0]["loss"] for record in records]
    assert len(set(losses)) == 4
    assert len([*tmp_path.glob("*.json")]) == 4
    assert [record["roles"]["source"].split(",")[0] for record in records] == [
        "by hand", "shuffled (seed 1)", "all generalization", "all mixed",
    ]  # fmt: skip


def test_shuffled_roles_are_another_deal_for_each_seed(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table that is shuffled is made once: 40,000 runs over a stranger's table of 12 kB took 63 s."""
    plan, table, asked = Plan("dear", "shuffled"), role_table(small_clip), list[Plan]()
    context, of_plan = RunContext(small_clip, table), Plan.table

    def counted(plan: Plan, roles: RoleTable | None) -> RoleTable | None:
        asked.append(plan)
        return of_plan(plan, roles)

    monkeypatch.setattr(Plan, "table", counted)
    deals = [context._table(plan, seed) for seed in range(1, 8)]
    assert deals == [table.shuffled(seed) for seed in range(1, 8)]
    assert asked == [plan]
    assert len({deal.heads[i].role for deal in deals if deal for i in (0,)}) > 1
    assert context._table(Plan("dear"), 1) is table
    assert context._table(Plan("dear", "all-mixed"), 1) == table.uniform("mixed")
    assert RunContext(small_clip)._table(Plan("dear", "all-mixed"), 1) is None


def test_a_run_whose_record_is_there_is_not_repeated(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, TrainingStep | None]] = []
    first = run(
        small_clip,
        [ZERO, DEAR],
        tmp_path,
        progress=lambda name, step: calls.append((name, step)),
    )
    ends = [step and (step.done, step.of, step.epoch) for _, step in calls if step is None or step.ends_epoch]
    assert ends == [None, (2, 4, 1), (4, 4, 2), None]
    assert [step.done for _, step in calls if step] == [*range(5)]
    files = {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert [*(tmp_path / UNFINISHED).iterdir()] == []
    assert {name for name, _ in calls} == set(files)

    def never(_self: Noise, _indices: Any) -> None:
        raise AssertionError("run again")

    monkeypatch.setattr(Noise, "load", never)
    calls.clear()
    again = run(
        small_clip,
        [ZERO, DEAR],
        tmp_path,
        progress=lambda name, step: calls.append((name, step)),
    )
    assert again == json.loads(json.dumps(first))
    assert [step for _, step in calls] == [None, None]
    assert {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == files
    # What the numbers depend on asks for another run; zero-shot does not depend on DeAR's settings.
    changed: list[dict[str, Any]] = [
        {"shots": 1}, {"seeds": [2]}, {"training": TrainSettings(epochs=1)},
        {"roles": role_table(small_clip).shuffled(3)},
    ]  # fmt: skip
    other = Plan("dear", settings=DearSettings(first=8, beta=0.5))
    with pytest.raises(AssertionError, match="run again"):
        run(small_clip, [other], tmp_path)
    for options in changed:
        with pytest.raises(AssertionError, match="run again"):
            run(small_clip, [DEAR], tmp_path, **options)
    assert run(small_clip, [ZERO], tmp_path, roles=role_table(small_clip).shuffled(3)) == again[:1]


def test_names_of_files_tell_methods_apart_that_differ_by_a_plus() -> None:
    names = [
        run_name(FewShot(), "cups", Plan(method), 2, 16, "0123456789abcdef") for method in ("mmrl", "mmrl++")
    ]
    assert names == ["cups-mmrl-16shot-seed2-01234567", "cups-mmrlpp-16shot-seed2-01234567"]


def test_a_long_name_of_a_data_set_is_cut() -> None:
    name = run_name(FewShot(), "c" * 250, Plan("mmrl"), 2, 16, "0123456789abcdef")
    assert name == "c" * 100 + "-mmrl-16shot-seed2-01234567"


def test_a_damaged_record_is_told(small_clip: Clip, tmp_path: Path) -> None:
    run(small_clip, [ZERO], tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text()[:99])
    with pytest.raises(DataError, match="is not a run record"):
        run(small_clip, [ZERO], tmp_path)


def test_a_place_that_cannot_be_written_is_told_before_anything_is_computed(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Noise, "load", None)
    with pytest.raises(OutputError, match="--out"):
        run(small_clip, [ZERO], tmp_path / "file" / "runs")


def test_a_folder_or_a_link_in_the_place_of_a_checkpoint(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback after the run had been made."""
    (record,) = run(small_clip, [ZERO], tmp_path)
    (path,) = tmp_path.glob("*.json")
    monkeypatch.setattr(runs, "Trial", lambda *_, **__: pytest.fail("something was computed"))
    unfinished = tmp_path / UNFINISHED
    for ending in (".pt", "-teacher.pt"):
        (unfinished / f"{path.stem}{ending}").mkdir(parents=True)
        for content in (json.dumps(record), None):
            path.write_text(content) if content else path.unlink()
            with pytest.raises(OutputError, match=rf"{path.stem}{ending} is a folder: remove it, or choose"):
                run(small_clip, [ZERO], tmp_path)
        (unfinished / f"{path.stem}{ending}").rmdir()


def test_too_few_images_for_the_shots(small_clip: Clip) -> None:
    with pytest.raises(DataError, match="has 3 images, fewer than 5 shots"):
        run(small_clip, [DEAR], shots=5)


def test_the_view_cache_of_the_settings(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the usual folder of caches; an experiment names its own. The float32 one has no part in the key."""
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "usual"))
    shared = replace(TRAINING, view_seed=3)
    (plain,) = run(small_clip, [DEAR], training=shared)
    (kept,) = run(small_clip, [DEAR], training=replace(shared, view_cache=0.01, view_cache_type="float32"))
    assert (kept["key"], numbers(kept)) == (plain["key"], numbers(plain))
    assert plain["key"] != run(small_clip, [DEAR])[0]["key"]
    # Four images in two epochs: a trunk output and a frozen feature each.
    assert len([*(tmp_path / "usual" / "views").rglob("*.view")]) == 4 * 2 * 2

    experiment = Experiment(
        protocol=FewShot(),
        data=("mixed-paints",),
        plans=(DEAR,),
        train=TrainOptions(view_seed=3, view_cache=0.5),
        dataset=DataSettings(cache=tmp_path / "own"),
    )
    views = Runner("cpu").context(experiment).views
    assert views is not None
    assert views.folder.parent == tmp_path / "own" / "views"
    assert views.limit == 2**29


def test_a_record_says_which_precision_auto_was(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that is fast in bfloat16, a run is another one than in float32."""
    training = replace(TRAINING, precision="auto")
    (full,) = run(small_clip, [DEAR], training=training)
    monkeypatch.setattr(precision, "fast_in_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "WIDE", 1)
    (rough,) = run(small_clip, [DEAR], training=training)
    (asked,) = run(small_clip, [DEAR], training=replace(TRAINING, precision="32-true"))
    found = [one["settings"]["train"]["precision"] for one in (full, rough, asked)]
    assert found == ["32-true", "bf16-mixed", "32-true"]
    assert full["key"] == asked["key"] != rough["key"]
    assert numbers(full) == numbers(asked) != numbers(rough)


def test_a_key_stays() -> None:
    """It names the files of runs that were made before: these keys were printed by an earlier version."""
    heads = tuple(
        HeadRole(12, head, "mixed", concept="caf\u00e9", share={"b": 0.25, "a": 0.75}) for head in range(2)
    )
    table = RoleTable(
        "by hand", Identity("m", "p", "0" * 64), ("color",), heads, evidence={"thresholds": [1, 2.5]}
    )
    keys = []
    for roles in (table, None):
        made = ResolvedRun(
            FewShot(), Plan("dear"), 1, 4, (replace(noise_dataset(), name="d", identity="i"),),
            DearSettings(tokens=3), TrainSettings(batch=8), "last", roles, {"model": "m"},
        )  # fmt: skip
        keys += [made.key, replace(made, teacher=made).key]
    assert keys == ["271c60652c818d6d", "7d951d010c339b21", "7839a5240035adb8", "930dd3e86cc44b72"]
    assert table.text == json.dumps(table.to_json(), sort_keys=True)


def test_what_runs_share_is_found_once(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role table as JSON and the check of all methods were made for each run."""
    table, written, checked = role_table(small_clip), [], []
    write = RoleTable.to_json
    monkeypatch.setattr(RoleTable, "to_json", lambda self: written.append(1) or write(self))
    monkeypatch.setattr(runs, "load_clip", lambda *_, **__: small_clip)
    monkeypatch.setattr(runs, "role_table", lambda *_: table)
    monkeypatch.setattr(runs, "check_towers", lambda *_: checked.append(1))
    experiment = Experiment(
        protocol=FewShot(), plans=(DEAR,), data=("mixed-paints",), model="tiny", shots=(1, 2, 4),
        seeds=(1, 2, 3, 4), out=tmp_path,
    )  # fmt: skip
    found, why = planned_runs([experiment], Machines("cpu"))
    assert (len(found), why, written, checked) == (12, None, [], [1])


def test_a_new_setting_changes_no_key(small_clip: Clip) -> None:
    """A key holds only what differs from the defaults."""

    @dataclass(frozen=True)
    class Later(CoOpSettings):
        warmth: float = 0.5

    def key(settings: CoOpSettings, **training: Any) -> str:
        context = RunContext(small_clip, training=TrainOptions(**training))
        run = context.resolve(BaseToNovel(), [noise_dataset()], Plan("coop"), seed=1, shots=2)
        return replace(run, settings=settings).key

    today = key(CoOpSettings(tokens=3))
    assert key(Later(tokens=3)) == today == key(CoOpSettings(tokens=3), momentum=0.9)
    assert (
        len(
            {
                today,
                key(Later(tokens=3, warmth=0.4)),
                key(CoOpSettings()),
                key(CoOpSettings(tokens=3), lr=0.5),
            }
        )
        == 4
    )
