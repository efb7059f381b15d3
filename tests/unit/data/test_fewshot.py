"""Few-shot picks, base and novel classes, subsets."""

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dear.data.dataset import Dataset, assemble
from dear.data.fewshot import (
    Subset,
    Unlabeled,
    balanced,
    base_novel,
    coop_shots,
    draw_few,
    pick_shots,
    uneven,
)
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError
from tests.helpers.data import Noise, noise_dataset
from tests.helpers.errors import refuses
from tests.unit.data.photos import load, picture

LABELS = torch.tensor([2, 0, 1, 1, 0, 2, 2, 0, 1, 2, 0])
"""Class 0 at 1, 4, 7, 10; class 1 at 2, 3, 8; class 2 at 0, 5, 6, 9."""
ITEMS = {0: {1, 4, 7, 10}, 1: {2, 3, 8}, 2: {0, 5, 6, 9}}


class Numbered:
    """Pictures that carry their own index in every pixel."""

    labels = LABELS
    identity = "numbered"

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Tensor) -> Tensor:
        return indices.to(torch.uint8)[:, None, None, None].expand(-1, 3, 5, 7)


def shown(images: Subset, *indices: int) -> list[int]:
    return [int(picture[0, 0, 0]) for picture in images.load(torch.tensor(indices))]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_shots_come_class_after_class_without_replacement(seed: int) -> None:
    picked = pick_shots(LABELS, 3, seed).tolist()
    assert LABELS[picked].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for label in range(3):
        drawn = picked[3 * label : 3 * label + 3]
        assert len(set(drawn)) == 3
        assert set(drawn) <= ITEMS[label]


def test_a_seed_gives_the_same_pick_whatever_the_global_generator() -> None:
    torch.manual_seed(5)
    first = pick_shots(LABELS, 2, 1)
    state = torch.random.get_rng_state()
    torch.manual_seed(7)
    assert torch.equal(pick_shots(LABELS, 2, 1), first)
    torch.manual_seed(5)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len({tuple(pick_shots(LABELS, 2, seed).tolist()) for seed in range(20)}) > 10


def test_fewer_shots_are_part_of_more() -> None:
    three = pick_shots(LABELS, 3, 1).view(3, 3)
    assert torch.equal(pick_shots(LABELS, 1, 1), three[:, 0])
    assert torch.equal(pick_shots(LABELS, 2, 1).view(3, 2), three[:, :2])


def test_draws_of_own_images_depend_on_their_contents_alone(tmp_path: Path) -> None:
    """Not on the names of files or the order of items; the Attribute World keeps its draw."""
    drawn = dict[tuple[int, bool], list[set[int]]]()
    for seed, is_turned in product((1, 2), (False, True)):
        items = [*range(40)][:: -1 if is_turned else 1]
        files = [picture(tmp_path / str(is_turned) / f"{at}.png", item) for at, item in enumerate(items)]
        settings = DataSettings(test_share=0, cache=tmp_path / "cache")
        data = load((files, ["abcd"[item % 4] for item in items]), settings)
        picks = [draw_few(data, shots, seed)[1] for shots in (5, 3)]
        levels = [[int(each.max()) for each in few.load(torch.arange(len(few)))] for few in picks]
        assert [level % 4 for level in levels[0]] == sorted([0, 1, 2, 3] * 5)
        drawn[seed, is_turned] = [*map(set, levels)]
    assert drawn[1, False] == drawn[1, True] != drawn[2, False] == drawn[2, True]
    assert all(more > fewer for more, fewer in drawn.values())
    task = load_dataset("mixed-paints")
    assert draw_few(task, 3, 1)[0].indices == tuple(pick_shots(task.train.labels, 3, 1).tolist())


def test_too_few_images_say_where_the_others_are() -> None:
    """The second class has 2 to train on and 3 for testing, and the third the fewest to train on."""
    train, test = Noise([0] * 7 + [1] * 2 + [2]), Noise([0, 1, 1, 1, 2])
    data = assemble("pets", "Pets", ["ant", "bee", "cat"], ["a {}"], train, None, test)
    refuses(DataError, ("1 (bee)", "2 images", "5 shots", "3 more", "--shots 1"), draw_few, data, 5, 1)
    refuses(DataError, "--shots 2", draw_few, data, 5, 1, [0, 1])


def test_a_class_by_name_alone_needs_no_shots() -> None:
    named = replace(numbered(), classnames=("ant", "bee", "emu", "owl"))
    assert draw_few(named, 2, 1)[0] == draw_few(numbered(), 2, 1)[0]


def test_a_pick_in_a_record() -> None:
    pick, _ = draw_few(numbered(), 2, 3)
    assert pick.indices == tuple(pick_shots(LABELS, 2, 3).tolist())
    record = json.loads(json.dumps(pick.to_json()))
    assert record == {"seed": 3, "shots": 2, "indices": list(pick.indices), "sampling": "dear", "files": []}


@pytest.mark.parametrize(
    ("n_classes", "base", "novel"), [(2, [0], [1]), (5, [0, 1, 2], [3, 4]), (6, [0, 1, 2], [3, 4, 5])]
)
def test_base_is_the_first_half_rounded_up(n_classes: int, base: list[int], novel: list[int]) -> None:
    assert [list(part) for part in base_novel(n_classes)] == [base, novel]


def test_subset_keeps_the_given_order() -> None:
    part = Subset(Numbered(), torch.tensor([9, 2, 4]))
    assert len(part) == 3
    assert part.labels.tolist() == [2, 1, 0]
    assert shown(part, 2, 0, 0) == [4, 9, 9]


def dassl_pick(labels: list[int], shots: int, seed: int) -> list[int]:
    """`generate_fewshot_dataset` of Dassl as it stands there, on places in place of items, after
    `set_random_seed`.
    """
    random.seed(seed)
    tracker: dict[int, list[int]] = defaultdict(list)
    for item, label in enumerate(labels):
        tracker[label].append(item)
    dataset: list[int] = []
    for items in tracker.values():
        dataset.extend(random.sample(items, shots) if len(items) >= shots else items)
    return dataset


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("shots", [1, 2, 3, 7])
def test_coops_picks_are_those_of_its_code(shots: int, seed: int) -> None:
    labels = [*LABELS.tolist(), *[4] * 29, *[3] * 5, *[4] * 31]
    state = random.getstate()
    expected = dassl_pick(labels, shots, seed)
    random.setstate(state)
    assert coop_shots(torch.tensor(labels), shots, seed).tolist() == expected
    assert random.getstate() == state


def numbered(sampling: str = "dear", *, allow_fewer: bool = False) -> Dataset:
    images = Numbered()
    settings = DataSettings(sampling=sampling, allow_fewer=allow_fewer)  # type: ignore[arg-type]
    return assemble("n", "N", ["ant", "bee", "emu"], ["{}"], images, None, images, settings)


@pytest.mark.parametrize(("sampling", "draw"), [("dear", pick_shots), ("coop", coop_shots)])
def test_base_and_novel_classes_share_one_pick(sampling: str, draw: object) -> None:
    """Classes are chosen after the draw, as in CoOp, and count anew from 0."""
    whole = draw(LABELS, 2, 5).tolist()  # type: ignore[operator]
    pick, few = draw_few(numbered(sampling), 2, 5)
    assert pick.indices == tuple(whole)
    assert shown(few, *range(6)) == whole
    novel, images = draw_few(numbered(sampling), 2, 5, [2])
    assert list(novel.indices) == [item for item in whole if LABELS[item] == 2]
    assert shown(images, 0, 1) == list(novel.indices)
    assert images.labels.tolist() == [0, 0]
    assert novel.sampling == sampling


def test_only_the_chosen_classes_need_enough_images() -> None:
    pick, _ = draw_few(numbered(), 4, 1, [0, 2])
    assert len(pick.indices) == 8
    refuses(DataError, ("1 (bee)", "3 images"), draw_few, numbered(), 4, 1, [1])
    assert len(draw_few(numbered(allow_fewer=True), 4, 1)[0].indices) == 11


class TestBalance:
    LABELS = torch.tensor([0] * 7 + [1] * 2 + [2] * 5)

    def test_small_classes_repeat(self) -> None:
        drawn = pick_shots(self.LABELS, 5, 1).tolist()
        found = balanced(drawn, self.LABELS, 5)
        assert Counter(self.LABELS[[*found]].tolist()) == {0: 5, 1: 5, 2: 5}
        assert sorted(Counter(found).values()) == [1] * 10 + [2, 3]
        assert [one for one in found if self.LABELS[one] != 1] == [i for i in drawn if self.LABELS[i] != 1]

    def test_drawn_for_a_data_set(self) -> None:
        data = replace(noise_dataset(), train=Noise([0, 1, 1, 2, 2, 3, 3]))
        refuses(DataError, "2 shots", draw_few, data, 2, 1)
        pick, few = draw_few(replace(data, balance=True), 2, 1)
        assert few.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert pick.indices[:2] == (0, 0)

    def test_images_without_labels_have_none_of_the_classes(self) -> None:
        images = Noise([0, 1, 1])
        without = Unlabeled(images)
        assert without.labels.tolist() == [-1, -1, -1]
        assert torch.equal(without.load(torch.tensor([2, 0])), images.load(torch.tensor([2, 0])))
        assert without.identity != Subset(images, torch.arange(3)).identity

    def test_what_is_uneven(self) -> None:
        assert uneven([0, 0, 1], ["a", "b"]) is None
        told = uneven([0, 0, 0, 1], ["a", "b"])
        assert told is not None
        assert told.startswith("the classes are uneven, from 1 (b) to 3 images (a)")
        assert uneven([0, 0, 0, 0, 0, 1, 1], ["a", "b"]) is None  # 5 images are fewer than 3 times 2
        assert uneven([], []) is None


def test_one_shot_is_the_least() -> None:
    assert len(draw_few(numbered(), 1, 1)[0].indices) == 3
    refuses(SettingsError, "shots is 0", draw_few, numbered(), 0, 1)
