"""Continual learning: groups in turn, tests among all seen, and a run that was cut off between two groups."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.world import CLASSES, noise_dataset, role_table

from dear.backbone.clip import Clip
from dear.evaluation import adapt as module
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.continual import Continual
from dear.evaluation.run_context import RunContext
from dear.evaluation.runs import UNFINISHED, run_one
from dear.methods.dear import DearSettings
from dear.training.settings import TrainSettings

EVERY = (*CLASSES, "blue square")
DEAR = Plan("dear", settings=DearSettings(first=8))


def made(clip: Clip, plan: Plan = DEAR, groups: int = 3, **options: Any) -> dict[str, Any]:
    context = RunContext(clip, role_table(clip), TrainSettings(epochs=2, batch=3, lr=1e-2))
    run = context.resolve(Continual(groups), [noise_dataset()], plan, seed=1, shots=2)
    return run_one(context, run, **options)


def numbers(record: dict[str, Any]) -> Any:
    epochs = [{k: v for k, v in one.items() if k != "seconds"} for one in record["train"]["epochs"]]
    return [epochs, record["results"], record["fusion_weights"], record["fewshot"]]


def test_each_training_sees_the_newest_group_and_goes_on(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def watched(method: Any, images: Any, *_args: Any, **_options: Any) -> list[Any]:
        seen.append((id(method), method.classnames, images.labels.tolist()))
        return []

    monkeypatch.setattr(module, "train", watched)
    made(small_clip)
    assert [classes for _, classes, _ in seen] == [EVERY[:2], EVERY[2:3], EVERY[3:]]
    assert [labels for *_, labels in seen] == [[0, 0, 1, 1], [0, 0], [0, 0]]
    assert len({method for method, *_ in seen}) == 1


@torch.no_grad()
def test_frozen_clip_among_all_classes_seen(small_clip: Clip) -> None:
    record = made(small_clip, Plan("zero-shot"))
    data = noise_dataset()
    clip = small_clip
    text = clip.text.features(
        clip.text.trunk(clip.tokenize([data.templates[0].format(n) for n in EVERY]), 13), 13
    )
    text = torch.nn.functional.normalize(text, dim=-1)
    pictures = data.test.load(torch.arange(len(data.test)))
    from dear.data.images.transforms import eval_views

    views = eval_views(pictures, clip.image_size)
    features = clip.image(clip.normalize_pixels(views.to(clip.image.projection)))
    labels = data.test.labels
    by_group = []
    for known in (2, 3, 4):
        some = labels < known
        hits = (features[some] @ text[:known].T).argmax(dim=1) == labels[some]
        by_group.append(float(hits.double().mean()))
    results = record["results"]
    assert [one["accuracy"] for one in results["seen"]] == pytest.approx(by_group)
    assert [one["classes"] for one in results["seen"]] == [2, 3, 4]
    assert results["average"] == pytest.approx(sum(by_group) / 3)
    last = results["seen"][-1]["per_class"]
    assert results["first"] == pytest.approx((last[EVERY[0]] + last[EVERY[1]]) / 2)


def test_a_run_cut_off_in_the_second_group_goes_on_to_the_same_numbers(
    small_clip: Clip, tmp_path: Path
) -> None:
    want = made(small_clip)
    assert [one.get("stage") for one in want["train"]["epochs"]] == [None, None, 2, 2, 3, 3]
    assert len(want["fewshot"]["indices"]) == 8
    told: list[int] = []

    class CutOffError(Exception):
        pass

    def cut_off(_run: str, epoch: int, _parts: dict[str, float]) -> None:
        told.append(epoch)
        if len(told) == 3:  # the first epoch of the second group
            raise CutOffError

    with pytest.raises(CutOffError):
        made(small_clip, out=tmp_path, progress=cut_off)
    assert len([*(tmp_path / UNFINISHED).glob("*.pt")]) == 2
    epochs: list[int] = []
    found = made(
        small_clip, out=tmp_path, progress=lambda _run, epoch, parts: epochs.append(epoch) if parts else None
    )
    assert epochs == [2, 1, 2]
    assert numbers(found) == numbers(want)
    assert not [*(tmp_path / UNFINISHED).glob("*.pt")]


def test_groups_are_part_of_the_key(small_clip: Clip) -> None:
    zero = Plan("zero-shot")
    assert made(small_clip, zero, 2)["key"] != made(small_clip, zero, 3)["key"]
