"""Tasks: classes, splits, shifts, and the adversarial choice."""

import pytest
import torch

from dear.data.world.classes import choose_classes
from dear.data.world.factors import FACTOR_NAMES, FACTORS, bulk
from dear.data.world.hashing import Stream
from dear.data.world.scene import draw_scenes
from dear.data.world.shifts import SHIFTS, shifted
from dear.data.world.tasks import (
    adversarial_candidates,
    adversarial_numbers,
    downstream_names,
    load_task,
)
from dear.errors import DataError, UnknownNameError
from tools.adversarial import choose_adversarial, save_adversarial
from tools.captions import words_of, world_words

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


def test_each_factor_alone_separates_the_classes_of_a_task_and_is_told_by_nothing_else():
    """With one factor a class, no other factor may tell: all are as frequent in each class."""
    alone = [
        load_task(name) for name in downstream_names() if len(load_task(name).train.factors_of_class) == 1
    ]
    assert {task.train.factors_of_class[0] for task in alone} == set(FACTOR_NAMES)
    for task in alone:
        assert task.train.habits == ()


def test_choice_of_classes_by_hand():
    # 2 x 2 values, 4 classes: the base half must use both values of each factor, so it is a diagonal.
    chosen = choose_classes([[3, 5], [7, 11]], 4, seed=2)
    assert set(chosen[:2]) in ({(3, 7), (5, 11)}, {(3, 11), (5, 7)})
    assert len(set(chosen)) == 4
    assert len(choose_classes([[3, 5], [7, 11]], 3, seed=2)) == 3
    with pytest.raises(ValueError, match="5 classes"):
        choose_classes([[3, 5], [7, 11]], 5, seed=2)


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
    with pytest.raises(UnknownNameError, match="street-signs"):
        load_task("tinted-sign")
    with pytest.raises(UnknownNameError, match="haze"):
        shifted(draw_scenes(5, torch.arange(2)), "hazy", 1.0, Stream(5, torch.arange(2)))


def test_adversarial_choice_takes_the_first_wrong_images_of_each_class():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    wrong = torch.tensor([False, True, True, True, False, True, True])
    assert choose_adversarial(wrong, labels, per_class=2) == [[1, 2], [3, 5]]
    with pytest.raises(DataError, match="class 1"):
        choose_adversarial(wrong & (labels == 0), labels)


def test_adversarial_images_are_kept_and_checked(tmp_path):
    path = tmp_path / "adversarial.json"
    candidates = adversarial_candidates()
    with pytest.raises(DataError, match=bulk("tasks")["adversarial_command"]):
        adversarial_numbers(candidates, path)
    save_adversarial(candidates, [[1, 5], [203]], path)
    numbers = adversarial_numbers(candidates, path)
    assert numbers == [1, 5, 203]
    kept = candidates.keep(numbers)
    assert kept.labels.tolist() == [0, 0, 1]
    assert torch.equal(kept.load(torch.tensor([2])), candidates.load(torch.tensor([203])))
    assert kept.identity != candidates.identity
    with pytest.raises(DataError, match="other images"):
        adversarial_numbers(load_task("source").train, path)


def test_habits_hold_for_their_share_of_the_images():
    """The share itself, and by chance in 1 of 8 (textures) or 10 (places) of the other images."""
    images = load_task("street-signs").train
    assert [name for name, _, _ in images.habits] == ["texture", "place"]
    for name, preferred, share in images.habits:
        size = len(FACTORS[name])
        has = images.factors[:, FACTOR_NAMES.index(name)] == torch.tensor(preferred)[images.labels]
        assert abs(has.double().mean() - (share + (1 - share) / size)) < 0.04  # 3 deviations of 1,024 images
        assert len(set(preferred[:8])) == len(set(preferred[8:])) == 8


def test_images_of_classes_with_looks_load_alone_as_in_a_batch():
    images = load_task("street-signs").test
    together = images.load(torch.tensor([3, 301, 159]))
    assert torch.equal(images.load(torch.tensor([301]))[0], together[1])
