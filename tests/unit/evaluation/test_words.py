"""The search for attribute words: the images it reads, its cost, its file and what it refuses."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.world import Noise, noise_dataset

from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.data.dataset import Dataset
from dear.errors import DataError, SettingsError
from dear.evaluation.word_settings import candidates, search_settings
from dear.evaluation.words import WordSearch
from dear.methods.registry import METHODS


class Unread(Noise):
    """Images that must not be loaded."""

    def load(self, indices: torch.Tensor) -> torch.Tensor:
        raise AssertionError(f"{len(indices)} images were read")


def searched(clip: Clip, dataset: Dataset | None = None, **options: Any) -> WordSearch:
    told: dict[str, Any] = {
        "method": "atprompt", "settings": METHODS["atprompt"].settings(tokens=1),
        "words": ("sea", "tree"), "sizes": (1, 2), "shots": 2, "seed": 1,
        "training": search_settings(epochs=2, batch=3),
    }  # fmt: skip
    return WordSearch(clip, dataset or untested(), **(told | options))


def untested() -> Dataset:
    return replace(noise_dataset(), test=Unread([0, 1, 2, 3]))


def test_all_combinations_are_weighed(small_clip: Clip) -> None:
    search = searched(small_clip)
    assert search.sets == (("sea",), ("tree",), ("sea", "tree"))
    told = []
    found = search.run(lambda epoch, weights: told.append((epoch, len(weights))))
    assert told == [(1, 3), (2, 3)]
    assert {one.words for one in found} == set(search.sets)
    assert sum(one.weight for one in found) == pytest.approx(1)
    assert [one.weight for one in found] == sorted((one.weight for one in found), reverse=True)
    assert [m.settings.chosen for m in search.methods()] == [*search.sets]  # type: ignore[attr-defined]


def test_only_base_classes_and_no_test_images_are_used(small_clip: Clip) -> None:
    few, val = searched(small_clip).images  # no validation images: the third training image of each class
    assert (few.labels.tolist(), sorted(val.labels.tolist())) == ([0, 0, 1, 1], [0, 1])
    pictures = [one.load(torch.arange(len(one))) for one in (few, val)]
    assert not any(torch.equal(a, b) for a in pictures[0] for b in pictures[1])
    own = replace(untested(), val=Noise([0] * 9 + [1, 2, 3], seed=8))
    assert searched(small_clip, own, shots=3).images[1].labels.tolist() == [0, 0, 0, 1]
    with pytest.raises(DataError, match="no validation images of its base classes"):
        _ = searched(small_clip, shots=3).images


def test_the_cost(small_clip: Clip) -> None:
    cost = searched(small_clip).cost()
    # 4 images in batches of 3, the last dropped: one step an epoch; 3 combinations of 2 classes.
    assert (cost.combinations, cost.epochs, cost.steps, cost.prompts) == (3, 2, 2, 6)
    assert cost.seconds > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "coop"}, "coop has no attribute words in its prompts; these have: atprompt"),
        ({"words": ()}, "0 words: give 1 to 8"),
        ({"words": ("sea", "tree", "sea")}, "the word 'sea' is given more than once"),
        ({"words": tuple("abcdefghi"), "sizes": (1, 9)}, "9 words"),
        ({"sizes": (2, 1)}, "combinations of 2 to 1 words"),
        ({"sizes": (1, 3)}, "must be of 1 to 2"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str, small_clip: Clip) -> None:
    with pytest.raises(SettingsError, match=message):
        searched(small_clip, **options)


def test_candidates() -> None:
    assert candidates([" sea", "tree "]) == ("sea", "tree")
    for words in (["sea", ""], ["sea,tree"]):
        with pytest.raises(SettingsError, match="each must be one word"):
            candidates(words)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--lr=-1", "lr is -1.0: it must be above 0"),
        ("--weight-lr=0", "weight_lr is 0.0: it must be above 0"),
        ("--shots=0", "shots is 0: it must be at least 1"),
        ("--least=3", "combinations of 3 to 2 words"),
        ("--method=coop", "coop has no attribute words"),
        ("--coop.tokens=7", "--coop.tokens applies to coop, which is not run"),
    ],
)
def test_settings_are_refused_before_anything_is_loaded(
    option: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "dear.backbone.load", None)  # importing it would fail
    assert main(["words", "sea", "tree", "--data", "mixed-paints", option, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_the_command(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dear.backbone.load.load_clip", lambda *_args, **_options: small_clip)
    monkeypatch.setattr("dear.data.loading.load_dataset", lambda *_args, **_options: untested())
    out = tmp_path / "words.json"
    out.write_text('{"toys": ["red"]}')
    asked = ["words", "sea", "tree", "--data", "source", "--out", str(out), "--shots", "2", "--epochs", "2"]
    asked += ["--atprompt.tokens", "1", "--json"]
    assert main([*asked, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "3 combinations x 2 steps (2 epochs): each step puts 6 prompts" in shown.err
    assert (json.loads(shown.out)["words"], json.loads(out.read_text())) == (None, {"toys": ["red"]})
    assert main(asked) == 0
    told = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == {"toys": ["red"], "noise": told["words"]}
    assert told["words"] == told["weights"][0]["words"]
    assert len(told["weights"]) == 3
    read = METHODS["atprompt"].settings(words=str(out)).for_data("noise")
    assert read.chosen == tuple(told["words"])  # type: ignore[attr-defined]
    assert main([*asked[:3], "--data", "noise", "--method", "coop"]) == 2
