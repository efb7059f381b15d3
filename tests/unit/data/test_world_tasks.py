"""Tasks: classes, splits, shifts, and the adversarial choice."""

import pytest
import torch

from dear.data.world.classes import choose_classes
from dear.data.world.factors import FACTOR_NAMES, FACTORS, STYLES, bulk
from dear.data.world.hashing import Stream
from dear.data.world.names import task_names
from dear.data.world.render import hued
from dear.data.world.scene import draw_scenes
from dear.data.world.shifts import SHIFTS, shifted
from dear.data.world.tasks import (
    adversarial_candidates,
    adversarial_numbers,
    downstream_names,
    load_task,
    make_task,
)
from dear.errors import DataError, UnknownNameError
from tools.adversarial import choose_adversarial, save_adversarial
from tools.captions import words_of, world_words

NAMES = [name for name in task_names() if name != "source-adversarial"]


def test_there_are_twelve_tasks_and_a_source_with_four_variants():
    assert len(downstream_names()) == 12
    assert len(downstream_names("calibrated")) == 8
    assert downstream_names("calibrated") + downstream_names("unseen") == downstream_names()
    assert not [name for name in downstream_names() if len(load_task(name).classnames) > 16]
    assert {name for name in task_names() if name.startswith("source-")} == {
        "source-resampled",
        "source-sketch",
        "source-rendition",
        "source-adversarial",
    }


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_classes_and_images(name):
    task = load_task(name)
    classes = len(task.classnames)
    assert len(set(task.classnames)) == classes
    if name.startswith("source"):
        assert classes == 120
    elif name in downstream_names(size="large"):
        assert 60 <= classes <= 120
    elif name in [row["name"] for row in bulk("tasks")["parts"]]:
        assert f"-{classes // 2}" in name
    else:
        assert 8 <= classes <= 16
    for split, per_class in ((task.train, 64), (task.val, 8), (task.check, 40), (task.test, 40)):
        assert len(split) == classes * per_class
        assert split.labels.bincount().tolist() == [per_class] * classes


@pytest.mark.parametrize("name", NAMES)
def test_labels_follow_from_the_factors_and_the_rest_varies(name):
    split = load_task(name).test
    columns = [FACTOR_NAMES.index(factor) for factor in split.factors_of_class]
    habits = {FACTOR_NAMES.index(name) for name, _, _ in split.habits}
    assert split.factors.shape == (len(split), 5)
    expected = torch.tensor(split.classes)[split.labels]
    assert torch.equal(split.factors[:, columns], expected)
    for column in set(range(5)) - set(columns) - habits:
        assert len(split.factors[:, column].unique()) == len(FACTORS[FACTOR_NAMES[column]])


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


def test_class_names_name_their_values():
    task = load_task("postcard-scenes")
    item, place = task.train.classes[4]
    assert task.classnames[4] == f"{FACTORS['object'].values[item]} {FACTORS['place'].words[place][0]}"


def test_images_load_alone_as_in_a_batch_and_again_the_same():
    images = load_task("street-signs").test
    together = images.load(torch.tensor([3, 101, 59]))
    assert together.shape == (3, 3, 48, 48)
    assert torch.equal(images.load(torch.tensor([101]))[0], together[1])
    load_task.cache_clear()
    assert torch.equal(load_task("street-signs").test.load(torch.tensor([59]))[0], together[2])


def test_splits_and_variants_are_disjoint():
    task, variant = load_task("source"), load_task("source-resampled")
    splits = [task.train, task.val, task.test, variant.train, variant.test]
    index = torch.arange(23)
    images = torch.cat([split.load(index) for split in splits]).flatten(1)
    assert len(images.unique(dim=0)) == len(splits) * 23
    assert len({split.identity for split in splits}) == len(splits)


def test_variants_have_the_classes_of_the_source():
    for name in ("source-resampled", "source-sketch", "source-rendition"):
        assert load_task(name).classnames == load_task("source").classnames
        assert load_task(name).template == load_task("source").template


def test_a_colour_task_shows_no_sketches_and_a_sketch_task_nothing_else():
    sketch = STYLES.values.index("sketch")
    images = load_task("travel-posters").test
    assert not (images.scenes(torch.arange(len(images))).style == sketch).any()
    images = load_task("source-sketch").test
    assert (images.scenes(torch.arange(997)).style == sketch).all()


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


def test_a_full_hue_shift_passes_each_channel_on():
    picture = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    red, green, blue = picture.unbind(1)
    share = torch.tensor([1.0, 0.25])
    turned = hued(picture, share)
    torch.testing.assert_close(turned[0], torch.stack([green[0], blue[0], red[0]]))
    torch.testing.assert_close(turned[1, 2], 0.75 * blue[1] + 0.25 * red[1])


def test_turned_and_cast_are_the_same_for_all_images():
    index = torch.arange(13)
    scene = draw_scenes(5, index)
    changed = shifted(shifted(scene, "turned", 0.5, Stream(5, index)), "cast", 1.0, Stream(5, index))
    for name in ("plate_turn", "icon_turn"):
        torch.testing.assert_close(getattr(changed, name) - getattr(scene, name), torch.full((13,), 0.25))
    torch.testing.assert_close(changed.gain / scene.gain, torch.tensor([1.25, 0.95, 0.35]).expand(13, 3))


def test_habits_hold_for_their_share_of_the_images():
    """The share itself, and by chance in 1 of 8 (textures) or 10 (places) of the other images."""
    images = load_task("street-signs").train
    assert [name for name, _, _ in images.habits] == ["texture", "place"]
    for name, preferred, share in images.habits:
        size = len(FACTORS[name])
        has = images.factors[:, FACTOR_NAMES.index(name)] == torch.tensor(preferred)[images.labels]
        assert abs(has.double().mean() - (share + (1 - share) / size)) < 0.04  # 3 deviations of 1,024 images
        assert len(set(preferred[:8])) == len(set(preferred[8:])) == 8


def test_strengths_of_own_shifts_are_spread_evenly_over_each_half():
    (hue, strengths), (turned, _) = load_task("street-signs").train.class_shifts
    assert (hue, turned) == ("hue", "turned")
    for half in (strengths[:8], strengths[8:]):
        assert sorted(half) == pytest.approx([0.8 * place / 7 for place in range(8)])
    assert strengths[:8] != tuple(sorted(strengths[:8]))


def test_own_shifts_are_those_of_each_class():
    """Image by image as the shift itself gives it, at the strength of the image's class."""
    row = {
        "name": "x",
        "title": "X",
        "factors": ["object"],
        "pattern": "{object}",
        "template": "a {}.",
        "seed": 5,
    }
    row |= {"values": {"object": 6}, "classes": 6, "shift": [], "image_seed": 5, "version": 4}
    plain, own = (make_task(row | more).val for more in ({}, {"own": [["turned", 0.5], ["cast", 1.0]]}))
    index = torch.tensor([47, 3, 20, 11, 4])
    before, after = plain.scenes(index), own.scenes(index)
    (_, turned), (_, cast) = own.class_shifts
    for place, label in enumerate(own.labels[index].tolist()):
        assert after.plate_turn[place] - before.plate_turn[place] == pytest.approx(
            0.5 * turned[label], abs=1e-6
        )
        assert after.gain[place, 2] / before.gain[place, 2] == pytest.approx(1 - 0.65 * cast[label], abs=1e-6)
    assert torch.equal(after.factors, before.factors)
    assert plain.identity != own.identity


def test_images_of_classes_with_looks_load_alone_as_in_a_batch():
    images = load_task("street-signs").test
    together = images.load(torch.tensor([3, 301, 159]))
    assert torch.equal(images.load(torch.tensor([301]))[0], together[1])


def test_no_images_load_as_none():
    assert load_task("street-signs").test.load(torch.empty(0, dtype=torch.int64)).shape == (0, 3, 48, 48)
