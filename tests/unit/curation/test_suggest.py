"""Which images to label next, and the file of them."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from scipy.sparse.csgraph import connected_components
from torch.nn.functional import normalize

from dear.adapters.labels import apply_labels
from dear.adapters.results import Suggestion, write_suggestions
from dear.curation.twins import choose_all, choose_next, find_limit, link_groups, margins
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.errors import refuses


def test_the_least_sure_come_first_and_no_two_are_alike() -> None:
    angles = torch.tensor([0.0, 2.0, 40.0, 90.0, 140.0]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    probabilities = torch.tensor([[0.5, 0.5], [0.52, 0.48], [0.1, 0.9], [0.4, 0.6], [0.3, 0.7]])
    assert margins(probabilities).tolist() == pytest.approx([0, 0.04, 0.8, 0.2, 0.4])
    # The nearest are 2, 2, 38, 50 and 50 degrees away.
    assert find_limit(features) == pytest.approx(float(torch.tensor(38.0).deg2rad().cos()), abs=1e-6)
    assert choose_next(probabilities, features, 3).tolist() == [0, 3, 4]  # 1 is like 0
    assert choose_next(probabilities, features, 9).tolist() == [0, 3, 4, 2, 1]


def test_what_is_of_no_class_comes_apart_and_by_groups() -> None:
    """Of three groups of 5, 5 and 1 images that are alike, the largest first, whatever their order."""
    angles = torch.tensor([0.0, 1, 90, 2, 91, 180, 3, 92, 4, 270, 271, 93, 94]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    unlike = torch.tensor([1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1]).bool()
    probabilities = torch.rand(13, 3, generator=torch.Generator().manual_seed(1)).softmax(dim=1)
    found = choose_all(probabilities, features, unlike, 11)
    own, new = [item for item, group in found if not group], [pair for pair in found if pair[1]]
    assert sorted(own) == [9, 10]
    assert {group for _, group in new} == {1, 2, 3}
    assert [sorted(item for item, group in new if group == number) for number in (1, 2, 3)] == [
        [0, 1, 3, 6, 8], [2, 4, 7, 11, 12], [5],
    ]  # fmt: skip
    assert choose_all(probabilities, features, unlike, 3)[2:] == [(0, 1), (1, 1), (3, 1)]


def test_groups_are_the_components_of_likenesses() -> None:
    """As those of the graph of all pairs, also where a group is a chain."""
    angles = torch.rand(60, generator=torch.Generator().manual_seed(1)).mul(6.28)
    features, limit = torch.stack([angles.cos(), angles.sin()], dim=1), float(torch.tensor(0.06).cos())
    _, parts = connected_components((features @ features.T > limit).numpy(), directed=False)
    expected = {frozenset((parts == part).nonzero()[0].tolist()) for part in set(parts.tolist())}
    groups = link_groups(features, limit)
    assert {*map(frozenset, groups)} == expected
    assert sum(map(len, groups)) == 60
    assert 5 < len(groups) < 50


def test_a_single_class_has_no_second() -> None:
    features = normalize(torch.rand(3, 4, generator=torch.Generator().manual_seed(1)), dim=1)
    assert len(choose_next(torch.ones(3, 1), features, 2)) == 2


def test_labels_that_were_filled_in_are_read(tmp_path: Path) -> None:
    images = [tmp_path / "more" / f"{number}.png" for number in range(4)]
    images[0].parent.mkdir()
    for number, image in enumerate(images):
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(image)
    suggestions = [Suggestion(str(image), "cup", 0.25 * number) for number, image in enumerate(images)]
    table = write_suggestions(tmp_path / "next.csv", suggestions)
    refuses(DataError, "next.csv", load_dataset, table)
    lines = table.read_text(encoding="utf-8-sig").splitlines()
    assert lines[0] == "file,label,suggested,margin,none_of_these,new_class"
    assert lines[2].endswith(",,cup,0.2500,,")
    same = [line.replace(",,cup", ",cup,cup") for line in lines[1:3]]
    table.write_text(
        "\n".join([lines[0], *same, lines[3].replace(",,", ",tree,"), lines[4]]), encoding="utf-8"
    )
    apply_labels(table, tmp_path / "more")
    dataset = load_dataset(tmp_path / "more", DataSettings(test_share=0))
    assert dataset.classnames == ("cup", "tree")
    assert dataset.train.labels.tolist() == [0, 0, 1]
