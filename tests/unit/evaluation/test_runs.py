"""Many runs: each leaves one record, none is repeated, and a record says what it is of."""

import gc
import json
import re
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dear.backbone import device
from dear.backbone.clip import Clip
from dear.evaluation import trial as protocol
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch import open_session, plan_runs
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.records import SCHEMA, run_name
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial
from dear.evaluation.workers import make_run
from dear.methods.base import Method, TrainingImages
from dear.methods.gda.method import GDA
from dear.methods.tip_adapter.method import TipAdapter
from dear.progress import TrainingStep
from dear.roles.variants import draw_roles, shuffle_roles, with_role
from dear.writing import UNFINISHED
from tests.helpers.data import CLASSES, Noise, noise_dataset
from tests.helpers.methods import role_table
from tests.helpers.records import numbers
from tests.helpers.runs import resolve_run, run_all

TRAINING = {"epochs": 2, "batch": 3, "lr": 1e-2}
ZERO, DEAR = MethodSetup("zero-shot"), MethodSetup("dear", {"first": 8})
TIP = MethodSetup("tip-adapter", {"tuned": True})


def run(
    clip: Clip, setups: list[MethodSetup], out: Path | None = None, **options: Any
) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"shots": 2, "train": TRAINING, "roles": role_table(clip)} | options
    return run_all(clip, [noise_dataset()], setups, out=out, **given)


def test_a_record_has_all_its_fields(small_clip: Clip) -> None:
    (record,) = run(small_clip, [DEAR])
    want = {"schema": SCHEMA, "protocol": "base-to-novel", "method": "dear", "variant": None, "seed": 1}
    want |= {"shots": 2, "selection": {"rule": "last", "epoch": 2}}
    want["roles"] = {"source": "by hand", "table": role_table(small_clip).to_json()}
    assert {key: record[key] for key in want} == want
    assert record["settings"]["method"]["first"] == 8
    assert record["settings"]["train"]["epochs"] == 2
    assert (record["dataset"]["name"], record["dataset"]["classes"]) == ("noise", [*CLASSES, "blue square"])
    assert record["weights"]["sha256"] == small_clip.identity.sha256
    assert record["peak_memory"]["resident"] > 1
    assert re.fullmatch("[0-9a-f]{16}", record["key"])
    assert {"dear", "python", "torch", "open_clip", "threads"} <= {*record["environment"]}
    assert re.fullmatch("[0-9a-f]{12}", record["environment"]["code"])
    assert [epoch["epoch"] for epoch in record["train"]["epochs"]] == [1, 2]
    assert len(record["fewshot"]["indices"]) == 4
    assert {*record["fusion_weights"]} == {"cls", "color", "object"}
    assert record["trainable_parameters"] == 2 * 21 + 5 * 22 + 21 * 17 + 3
    base, novel = (record["results"][half] for half in ("base", "novel"))
    assert [{*half["per_class"]} for half in (base, novel)] == [{*CLASSES[:2]}, {CLASSES[2], "blue square"}]
    # The test set has 7, 5, 5, 7 images of the classes.
    by_class = [*base["per_class"].values(), *novel["per_class"].values()]
    assert base["accuracy"] == pytest.approx((7 * by_class[0] + 5 * by_class[1]) / 12)
    assert novel["accuracy"] == pytest.approx((5 * by_class[2] + 7 * by_class[3]) / 12)
    b, n = base["accuracy"], novel["accuracy"]
    assert record["results"]["hm"] == pytest.approx(2 * b * n / (b + n) if b * n else 0)


def test_training_sees_base_classes_only(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """And zero-shot is not trained."""
    seen: list[Any] = []

    def watched(method: Any, images: Any, *_args: Any, **_options: Any) -> list[Any]:
        seen.append((method.classnames, images.labels.tolist(), images.load(images.labels * 0).shape))
        return []

    monkeypatch.setattr(protocol, "train", watched)
    untrained, _ = run(small_clip, [ZERO, DEAR])
    assert seen == [(tuple(CLASSES[:2]), [0, 0, 1, 1], (4, 3, 23, 29))]
    assert untrained["train"] == {"epochs": []}
    assert untrained["trainable_parameters"] == 0
    assert untrained["fewshot"] is untrained["fusion_weights"] is untrained["roles"] is None


def test_the_same_seed_gives_the_same_numbers(small_clip: Clip) -> None:
    one, two = run(small_clip, [DEAR], seeds=[1, 2])
    (again,) = run(small_clip, [DEAR])
    assert numbers(one) == numbers(again) != numbers(two)
    # Alone, without the cache that zero-shot and other runs have filled:
    session, options = Session(), {"roles": role_table(small_clip), "train": TRAINING}
    one_run = resolve_run(
        session, small_clip, BaseToNovel(), [noise_dataset()], DEAR, seed=2, shots=2, **options
    )
    alone = run_one(session, one_run)
    assert numbers(alone) == numbers(two)


def test_a_run_with_a_damaged_checkpoint_starts_over(small_clip: Clip, tmp_path: Path) -> None:
    def stop(_run: str, step: TrainingStep | None) -> None:
        if step is not None and step.ends_epoch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small_clip, [DEAR], tmp_path, progress=stop)
    (checkpoint,) = (tmp_path / UNFINISHED).iterdir()
    checkpoint.write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        (again,) = run(small_clip, [DEAR], tmp_path)
    assert numbers(again) == numbers(run(small_clip, [DEAR])[0])


def test_all_of_a_training_is_timed(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes before the first step, a fit without steps, and the epochs before an interruption."""
    seconds = 0.0
    monkeypatch.setattr(protocol, "time", SimpleNamespace(perf_counter=lambda: seconds))

    def wait(prepare: Callable[..., None]) -> Callable[..., None]:
        def prepare_slowly(method: Method, images: TrainingImages) -> None:
            nonlocal seconds
            seconds += 50
            prepare(method, images)

        return prepare_slowly

    for kind in (TipAdapter, GDA):
        monkeypatch.setattr(kind, "before_training", wait(kind.before_training))
    for setup in (TIP, MethodSetup("gda")):
        session = Session()
        resolve = partial(resolve_run, session, roles=role_table(small_clip), train=TRAINING)
        resolved = resolve(small_clip, FewShot(), [noise_dataset()], setup, seed=1, shots=2)
        trial = Trial(session, resolved)
        trial.train(range(4))
        assert trial.train_seconds == 50

    def stop(step: TrainingStep) -> None:
        if step.ends_epoch:
            raise KeyboardInterrupt

    resolved = resolve(small_clip, FewShot(), [noise_dataset()], TIP, seed=1, shots=2)
    with pytest.raises(KeyboardInterrupt):
        Trial(session, resolved, tmp_path / "state.pt", stop).train(range(4))
    again = Trial(session, resolved, tmp_path / "state.pt")
    again.train(range(4))
    assert len(again.epochs) == 2
    assert again.train_seconds == 50 + again.epochs[0]["seconds"]


def test_shuffled_roles_are_another_permutation_for_each_seed(small_clip: Clip) -> None:
    table = role_table(small_clip)
    shuffled = [MethodSetup("dear", role_variant="shuffled").table(table, seed) for seed in (1, 2)]
    assert shuffled == [shuffle_roles(table, seed) for seed in (1, 2)]
    assert shuffled[0] != shuffled[1]
    assert (
        MethodSetup("dear", role_variant="random").table(table, 2)
        == draw_roles(table, 2)
        != draw_roles(table, 1)
    )
    assert MethodSetup("dear").table(table, 1) is table
    assert MethodSetup("dear", role_variant="all-mixed").table(table, 1) == with_role(table, "mixed")
    assert MethodSetup("dear").table(None, 1) is MethodSetup("zero-shot").table(table, 1) is None


def test_setups_with_role_tables_of_their_own(small_clip: Clip, tmp_path: Path) -> None:
    (other := shuffle_roles(role_table(small_clip), 3)).save(tmp_path / "dealt.json")
    own = MethodSetup("dear", DEAR.settings, roles=tmp_path / "dealt.json")
    records = run(small_clip, [DEAR, own], tmp_path / "out")
    assert [record["roles"]["table"]["heads"] for record in records] == [
        table.to_json()["heads"] for table in (role_table(small_clip), other)
    ]
    assert [record["variant"] for record in records] == [None, "roles dealt"]


def test_a_run_whose_record_is_there_is_not_repeated(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, TrainingStep | None]] = []

    def tell(name: str, step: TrainingStep | None) -> None:
        calls.append((name, step))

    first = run(small_clip, [ZERO, DEAR], tmp_path, progress=tell)
    ends = [step and (step.done, step.of, step.epoch) for _, step in calls if step is None or step.ends_epoch]
    assert ends == [None, (2, 4, 1), (4, 4, 2), None]
    assert [step.done for _, step in calls if step] == [*range(5)]
    files = {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert [*(tmp_path / UNFINISHED).iterdir()] == []
    assert {name for name, _ in calls} == {*files}

    def never(_self: Noise, _indices: Any) -> None:
        raise AssertionError("run again")

    monkeypatch.setattr(Noise, "load", never)
    calls.clear()
    again = run(small_clip, [ZERO, DEAR], tmp_path, progress=tell)
    assert again == json.loads(json.dumps(first))
    assert [step for _, step in calls] == [None, None]
    assert {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == files
    # What the numbers depend on asks for another run; zero-shot does not depend on DeAR's settings.
    shuffled = shuffle_roles(role_table(small_clip), 3)
    other = MethodSetup("dear", {"first": 8, "beta": 0.5})
    changes: list[tuple[MethodSetup, dict[str, Any]]] = [
        (other, {}), (DEAR, {"shots": 1}), (DEAR, {"seeds": [2]}), (DEAR, {"roles": shuffled}),
        (DEAR, {"train": {"epochs": 1, "warmup_epochs": 0}}),
    ]  # fmt: skip
    for setup, options in changes:
        with pytest.raises(AssertionError, match="run again"):
            run(small_clip, [setup], tmp_path, **options)
    assert run(small_clip, [ZERO], tmp_path, roles=shuffled) == again[:1]


def test_names_of_files() -> None:
    words = "photographs of " * 10  # a long name is cut after a word
    names = {"cups": "cups", "c" * 250: "c" * 100, words: "-".join(["photographs-of"] * 6)}
    for data, method, start in ((name, "mmrl++", f"{part}-mmrlpp") for name, part in names.items()):
        name = run_name(FewShot(), data, method, None, 2, 16, "0123456789abcdef")
        assert name == f"{start}-16shot-seed2-01234567"


def test_only_the_data_sets_of_the_present_run_stay_in_memory(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": ("mixed-paints", "worn-fabrics"), "shots": (1,), "out": tmp_path}
    experiment = Experiment(protocol=FewShot(), methods=(ZERO,), model="tiny", **options)
    session, kept = Session(), list[Any]()
    (((first, _), (second, _)),) = plan_runs(session, [experiment])
    for each in (first, first, second):
        make_run(each, session)
        kept.append(weakref.ref(session.resolve_run(each).source))
    gc.collect()
    assert [source() is None for source in kept] == [True, True, False]


def test_a_record_says_which_precision_auto_was(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that is fast in bfloat16, a run is another one than in float32."""
    training = TRAINING | {"precision": "auto"}
    (full,) = run(small_clip, [DEAR], train=training)
    monkeypatch.setattr(device, "fast_in_bfloat16", lambda: True)
    monkeypatch.setattr(device, "WIDE_FOR_BFLOAT16", 1)
    (rough,) = run(small_clip, [DEAR], train=training)
    (asked,) = run(small_clip, [DEAR], train=TRAINING | {"precision": "32-true"})
    found = [one["settings"]["train"]["precision"] for one in (full, rough, asked)]
    assert found == ["32-true", "bf16-mixed", "32-true"]
    assert full["key"] == asked["key"] != rough["key"]
    assert numbers(full) == numbers(asked) != numbers(rough)


def key_of(clip: Clip, settings: dict[str, Any], train: dict[str, Any]) -> str:
    options, setup = {"seed": 1, "shots": 2, "train": train}, MethodSetup("coop", settings)
    return resolve_run(Session(), clip, FewShot(), [noise_dataset()], setup, **options).key


def test_a_key_is_of_all_settings(small_clip: Clip) -> None:
    """Those of the user, of the authors and the defaults, whoever said them; few-shot has 16 tokens and no
    words. A record made under another default is of another run.
    """
    plain = key_of(small_clip, {}, {})
    assert key_of(small_clip, {"tokens": 16}, {"lr": 0.002}) == plain
    assert key_of(small_clip, {}, {"text_chunk": 3}) == plain
    others = [({"tokens": 4}, {}), ({"words": "a photo of a"}, {}), ({}, {"momentum": 0.5})]
    keys = {key_of(small_clip, settings, training) for settings, training in others}
    assert len(keys | {plain}) == 4


@pytest.mark.parametrize(
    ("method", "used"),
    [("zero-shot", {"precision"}), ("linear-probe", {"precision", "crop", "view_seed"})],
)
def test_without_steps_settings_of_steps_are_in_no_key_and_no_record(
    small_clip: Clip, method: str, used: set[str]
) -> None:
    def resolved(train: dict[str, Any]) -> ResolvedRun:
        conditions: dict[str, Any] = {"seed": 1, "shots": 2, "train": train}
        return resolve_run(
            Session(), small_clip, FewShot(), [noise_dataset()], MethodSetup(method), **conditions
        )

    others = {
        "epochs": 3,
        "lr": 0.5,
        "optimizer": "sgd",
        "crop": 0.25,
        "view_seed": 5,
        "precision": "bf16-mixed",
    }
    keys = {name: resolved({name: value}).key for name, value in others.items()}
    assert {name for name, key in keys.items() if key != resolved({}).key} == used
    assert resolved(others).used_training.keys() == used | {"text_chunk"}
    assert resolved(others).overrides["train"].keys() == used
    record = run_one(Session(), resolved({"epochs": 3, "lr": 0.5}))
    assert record["settings"]["train"].keys() == used | {"text_chunk"}


def test_options_without_effect_are_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": ("street-signs",),
        "shots": (1,),
        "train": {"epochs": 3},
    }
    for method in ("zero-shot", "linear-probe"):
        sweep = Experiment(protocol=FewShot(), methods=(MethodSetup(method),), out=tmp_path, **options)
        with pytest.warns(UserWarning, match=rf"--train\.epochs has no effect: {method}"):
            plan_runs(open_session(Machines("cpu")), [sweep])
