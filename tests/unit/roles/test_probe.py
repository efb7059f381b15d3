"""Probes whose result is known."""

import pytest
import torch

from dear.backbone import tiny
from dear.data.world.factors import FACTOR_NAMES
from dear.data.world.render import WorldScenes
from dear.roles.decompose import spread
from tools.probe import best, probe_accuracy, probe_head, probe_heads


def test_spread() -> None:
    assert spread(7, 3).tolist() == [0, 2, 4]
    assert spread(3, 7).tolist() == [0, 1, 2]


def test_a_probe_reads_what_is_written_linearly() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 5, (997,), generator=generator)
    directions = torch.randn(5, 11, generator=generator)
    noise = 0.01 * torch.randn(997, 11, generator=generator)
    assert probe_accuracy(directions[labels] + noise, labels, 5) == 1
    # Nothing to read: near chance, 0.2, whose deviation over 499 items is 0.018.
    assert abs(probe_accuracy(torch.randn(997, 11, generator=generator), labels, 5) - 0.2) < 0.08


def test_what_one_head_writes() -> None:
    scenes = WorldScenes(601, 48)
    place = torch.nn.functional.one_hot(scenes.factors[:, 4], 10).float()
    found = probe_head(place, scenes.factors)
    assert found.readings["place"] == pytest.approx(1)
    assert found.explained["place"] == pytest.approx(1)
    assert best(found.readings) == best(found.explained) == "place"
    assert all(abs(found.readings[name]) < 0.15 for name in FACTOR_NAMES[:4])


def test_all_heads_of_the_tiny_clip() -> None:
    if not (tiny.FOLDER / tiny.WEIGHTS).is_file():
        pytest.skip(f"the packaged weights are not there yet: {tiny.FOLDER / tiny.WEIGHTS}")
    clip = tiny.load()
    found = probe_heads(clip, WorldScenes(200, clip.image_size), [12])
    assert [*found] == [(12, head) for head in range(clip.image.heads)]
    assert all(set(one.readings) == set(one.explained) == set(FACTOR_NAMES) for one in found.values())
    assert max(max(one.readings.values()) for one in found.values()) > 0.2
