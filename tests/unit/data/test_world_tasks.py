"""Tasks: classes, splits, shifts, the adversarial choice, large tasks; images stay what they were."""

import json
from pathlib import Path

import pytest
import torch

from dear.errors import DataError, UnknownNameError
from dear.world.hashing import Stream
from dear.world.names import packaged_json
from dear.world.scene import draw_scenes
from dear.world.shifts import SHIFTS, shifted
from dear.world.tasks import (
    adversarial_candidates,
    adversarial_numbers,
    choose_classes,
    downstream_names,
    load_task,
)
from tests.helpers.errors import refuses
from tools.captions import words_of, world_words
from tools.rebuild_assets import save_adversarial

NAMES = [*downstream_names(), *downstream_names(size="large"), "source", "source-sketch"]


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_classes_and_images(name):
    task = load_task(name)
    classes = len(task.classnames)
    assert len(set(task.classnames)) == classes
    if name.startswith("source"):
        assert classes == 120
    elif name in downstream_names(size="large"):
        assert 60 <= classes <= 120
    else:
        assert 8 <= classes <= 16
    for split, per_class in ((task.train, 64), (task.val, 8), (task.check, 40), (task.test, 40)):
        assert len(split) == classes * per_class
        assert split.labels.bincount().tolist() == [per_class] * classes


@pytest.mark.parametrize("name", downstream_names() + downstream_names(size="large"))
def test_base_and_novel_share_no_class_and_one_factor_sets_them_apart(name):
    images = load_task(name).train
    half = (len(images.classes) + 1) // 2
    base, novel = images.classes[:half], images.classes[half:]
    apart = [not {c[place] for c in base} & {c[place] for c in novel} for place in range(len(base[0]))]
    assert sum(apart) == 1
    assert not set(base) & set(novel)


def test_choice_of_classes_by_hand():
    # 2 x 2 values, 4 classes: the base half must use both values of each factor, so it is a diagonal.
    chosen = choose_classes([[3, 5], [7, 11]], 4, seed=2)
    assert set(chosen[:2]) in ({(3, 7), (5, 11)}, {(3, 11), (5, 7)})
    assert len(set(chosen)) == 4
    assert len(choose_classes([[3, 5], [7, 11]], 3, seed=2)) == 3
    refuses(ValueError, "5 classes", choose_classes, [[3, 5], [7, 11]], 5, seed=2)


def test_class_names_and_prompts_are_of_known_words():
    known = set(world_words())
    for name in NAMES:
        task = load_task(name)
        assert task.template.count("{}") == 1
        for classname in task.classnames:
            assert set(words_of(task.template.format(classname))) <= known


def test_splits_and_variants_are_disjoint():
    task, variant = load_task("source"), load_task("source-resampled")
    splits = [task.train, task.val, task.test, variant.train, variant.test]
    index = torch.arange(23)
    images = torch.cat([split.load(index) for split in splits]).flatten(1)
    assert len(images.unique(dim=0)) == len(splits) * 23
    assert len({split.identity for split in splits}) == len(splits)


@pytest.mark.parametrize("kind", sorted(SHIFTS))
def test_a_shift_changes_the_scene_but_no_factor(kind):
    index = torch.arange(31)
    scene = draw_scenes(5, index)
    changed = shifted(scene, kind, 0.9, Stream(5, index))
    assert torch.equal(changed.factors, scene.factors)
    assert any(
        not torch.equal(getattr(changed, name), getattr(scene, name)) for name in scene.__dataclass_fields__
    )
    alone = shifted(scene[17:18], kind, 0.9, Stream(5, index[17:18]))
    for name in scene.__dataclass_fields__:
        assert torch.equal(getattr(alone, name)[0], getattr(changed, name)[17]), name


def test_unknown_names():
    refuses(UnknownNameError, "street-signs", load_task, "tinted-sign")
    with pytest.raises(UnknownNameError, match="haze"):
        shifted(draw_scenes(5, torch.arange(2)), "hazy", 1.0, Stream(5, torch.arange(2)))


def test_adversarial_images_are_kept_and_checked(tmp_path):
    path = tmp_path / "adversarial.json"
    candidates = adversarial_candidates()
    with pytest.raises(DataError, match=packaged_json("tasks")["adversarial_command"]):
        adversarial_numbers(candidates, path)
    save_adversarial(candidates, [[1, 5], [203]], path)
    numbers = adversarial_numbers(candidates, path)
    assert numbers == [1, 5, 203]
    kept = candidates.keep(numbers)
    assert kept.labels.tolist() == [0, 0, 1]
    assert torch.equal(kept.load(torch.tensor([2])), candidates.load(torch.tensor([203])))
    assert kept.identity != candidates.identity
    refuses(DataError, "other images", adversarial_numbers, load_task("source").train, path)


STORED = json.loads(Path(__file__).with_name("world_images.json").read_text())
SPLITS = ("train", "val", "check", "test")


def test_two_of_four_large_tasks_are_unseen() -> None:
    large = downstream_names(size="large")
    assert len(large) == 4
    assert len(downstream_names("unseen", "large")) == 2
    assert downstream_names("calibrated", "large") + downstream_names("unseen", "large") == large
    assert not {*large} & {*downstream_names()}


@pytest.mark.parametrize(
    "name", [*downstream_names(), "source", "source-sketch", "source-adversarial", "holiday-albums-6b"]
)
def test_images_stay_what_they_were(name: str) -> None:
    """The identity of each split, and how bright three check images are; of an unseen large task nothing was
    rendered for this.
    """
    task, stored = load_task(name), STORED[name]
    assert {split: getattr(task, split).identity.rsplit("/", 1)[1] for split in SPLITS} == {
        split: stored[split] for split in SPLITS
    }
    if "levels of three check images" in stored:
        levels = task.check.load(torch.tensor([5, 101, 233])).double().mean((1, 2, 3))
        assert levels.tolist() == pytest.approx(stored["levels of three check images"], abs=0.02)


@pytest.mark.parametrize("split", SPLITS)
def test_a_part_has_the_images_of_the_whole(split: str) -> None:
    """Also of its last novel class, whose label is 29 in the part and 60 + 29 in the whole."""
    part, whole = load_task("holiday-albums-15b"), load_task("holiday-albums")
    images, everything = getattr(part, split), getattr(whole, split)
    each = images.per_class
    here, there = [2, 14 * each + 3, 29 * each + 5], [15 * each + 2, 29 * each + 3, 89 * each + 5]
    assert torch.equal(images.load(torch.tensor(here)), everything.load(torch.tensor(there)))
    assert images.labels[here].tolist() == [0, 14, 29]
    assert [part.classnames[label] for label in (0, 14, 29)] == [
        whole.classnames[label] for label in everything.labels[there].tolist()
    ]
    assert images.identity != everything.identity
