"""Large tasks and their parts; the images of all tasks stay what they were."""

import json
from pathlib import Path

import pytest
import torch

from dear.data.world.names import downstream_names
from dear.data.world.tasks import load_task

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
