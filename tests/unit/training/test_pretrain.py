"""Pretraining: which captions describe which images, the loss by slow loops, and runs that go on bit for
bit.
"""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone import tiny
from dear.backbone.clip import tensors_hash
from dear.data.world.factors import FACTOR_NAMES, STYLES
from dear.data.world.scene import draw_scenes
from dear.errors import OutputError, TrainingDiverged
from dear.training import pretrain
from dear.training.pretrain import (
    Pretraining,
    matches,
    multi_positive_loss,
    text_features,
    visible_factors,
)
from dear.training.settings import PretrainSettings

SMALL = {
    "embed_dim": 17,
    "vision_cfg": {
        "image_size": 24,
        "patch_size": 8,
        "width": 21,
        "head_width": 7,
        "layers": 2,
        "mlp_ratio": 2.0,
    },
    "text_cfg": {
        "context_length": 23,
        "vocab_size": 0,
        "width": 22,
        "heads": 2,
        "layers": 1,
        "mlp_ratio": 2.0,
    },
}
SETTINGS = PretrainSettings(images=44, batch=8, warmup=2, seed=3, spelled=0.3)  # 6 steps


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "config", lambda: copy.deepcopy(SMALL))


def test_matches_by_hand() -> None:
    # Factors: colour, object. Image 2 is a sketch, whose colour is not visible.
    images = torch.tensor([[1, 5], [1, 6], [1, 5]])
    visible = torch.tensor([[True, True], [True, True], [False, True]])
    captions = torch.tensor([[1, 5], [1, 5], [1, 5], [2, 6]])
    named = torch.tensor([[True, True], [True, False], [False, True], [False, True]])
    assert matches(images, visible, captions, named).int().tolist() == [
        [1, 1, 1, 0],
        [0, 1, 0, 1],
        [0, 0, 1, 0],
    ]


def test_matches_by_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    images, captions = (torch.randint(0, 2, (n, 5), generator=generator) for n in (7, 11))
    visible, named = (torch.rand(n, 5, generator=generator) < p for n, p in ((7, 0.8), (11, 0.4)))
    want = [
        [
            all(visible[i, f] and images[i, f] == captions[c, f] for f in range(5) if named[c, f])
            for c in range(11)
        ]
        for i in range(7)
    ]
    got = matches(images, visible, captions, named)
    assert got.tolist() == want
    assert 0 < int(got.sum()) < 77


def test_the_loss_by_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(2)
    similarity = 3 * torch.randn(3, 7, generator=generator, dtype=torch.float64)
    positive = torch.rand(3, 7, generator=generator) < 0.4
    positive[torch.arange(7) % 3, torch.arange(7)] = True  # every row and column has one
    s, p = similarity.tolist(), positive.tolist()

    def cross_entropy(logits: list[float], chosen: list[bool]) -> float:
        total = math.log(sum(math.exp(v) for v in logits))
        return sum(total - v for v, on in zip(logits, chosen, strict=True) if on) / sum(chosen)

    by_row = sum(cross_entropy(s[i], p[i]) for i in range(3)) / 3
    by_column = (
        sum(cross_entropy([s[i][c] for i in range(3)], [p[i][c] for i in range(3)]) for c in range(7)) / 7
    )
    assert float(multi_positive_loss(similarity, positive)) == pytest.approx(
        (by_row + by_column) / 2, abs=1e-12
    )


def test_with_one_positive_each_it_is_clips_loss() -> None:
    similarity = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    label = torch.arange(5)
    want = (
        torch.nn.functional.cross_entropy(similarity, label)
        + torch.nn.functional.cross_entropy(similarity.T, label)
    ) / 2
    torch.testing.assert_close(multi_positive_loss(similarity, torch.eye(5, dtype=torch.bool)), want)


def test_a_sketch_shows_no_colour() -> None:
    scene = draw_scenes(1, torch.arange(97), combinations="pretraining")
    visible = visible_factors(scene)
    assert visible.shape == (97, 5)
    sketch = [style == STYLES.values.index("sketch") for style in scene.style.tolist()]
    assert 0 < sum(sketch) < 97
    for column, name in enumerate(FACTOR_NAMES):
        assert visible[:, column].tolist() == ([not s for s in sketch] if name == "color" else [True] * 97)


def test_every_image_matches_its_own_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(similarity: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
        seen.append(positive)
        return multi_positive_loss(similarity, positive)

    monkeypatch.setattr(pretrain, "multi_positive_loss", watched)
    Pretraining(SETTINGS, tmp_path).batch_loss(0)
    (positive,) = seen
    assert positive.shape == (8, 24)  # two captions an image, and one of its texture alone
    assert all(positive[c % 8, c] for c in range(24))


def test_text_in_parts_by_length_equals_the_tower_at_once(tmp_path: Path) -> None:
    run = Pretraining(SETTINGS, tmp_path)
    captions = [
        "a fish",
        "a photo of a red thing.",
        "a striped circle on the beach with a letter q",
        "red",
        "a",
    ]
    tower = run.text.float()
    ids = run.tokenizer(captions)
    torch.testing.assert_close(text_features(tower, ids, parts=3), tower(ids))


def facts(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name != "seconds"}


def test_going_on_equals_an_undisturbed_run(tmp_path: Path) -> None:
    whole = Pretraining(SETTINGS, tmp_path / "whole")
    start = tensors_hash(whole.master.state_dict())
    want = whole.run(every=2)
    assert want["steps"] == whole.step == 6
    assert want["parameters"] == sum(p.numel() for p in whole.master.parameters())
    assert tensors_hash(whole.master.state_dict()) != start

    def stop(run: Pretraining) -> None:
        if run.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pretraining(SETTINGS, tmp_path / "cut").run(every=2, progress=stop)
    assert [p.name for p in (tmp_path / "cut").iterdir()] == ["checkpoint.pt"]
    steps: list[int] = []
    resumed = Pretraining(SETTINGS, tmp_path / "cut")
    got = resumed.run(every=2, progress=lambda run: steps.append(run.step))
    assert steps == [6]
    assert facts(got) == facts(want)
    assert tensors_hash(resumed.master.state_dict()) == tensors_hash(whole.master.state_dict())
    names = ["checkpoint.pt", "model.safetensors", "vocabulary.json"]
    assert sorted(p.name for p in (tmp_path / "cut").iterdir()) == names
    for name in names[1:]:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    clip = tiny.load(tmp_path / "whole")
    assert (clip.identity.model, clip.identity.pretrained) == ("tiny", "whole")
    rounded = {name: tensor.half().float() for name, tensor in whole.master.state_dict().items()}
    assert clip.identity.sha256 == tensors_hash(rounded)
    assert clip.tokenizer.words == whole.tokenizer.words  # type: ignore[attr-defined]
    assert (
        clip.encode_image(torch.zeros(1, 3, 24, 24)).shape
        == clip.encode_text(["a red house"]).shape
        == (1, 17)
    )

    with pytest.raises(OutputError, match=r"checkpoint\.pt is of other settings"):
        Pretraining(PretrainSettings(images=44, batch=8, warmup=2, seed=4), tmp_path / "whole").run()


@pytest.mark.parametrize(("spelled", "words", "letters"), [(0.0, True, False), (1.0, False, True)])
def test_spelling_trains_the_letters(spelled: float, words: bool, letters: bool, tmp_path: Path) -> None:
    run = Pretraining(replace(SETTINGS, spelled=spelled, bf16=False), tmp_path)
    run.batch_loss(0).backward()
    gradient = run.worker.token_embedding.weight.grad  # type: ignore[union-attr]
    assert isinstance(gradient, torch.Tensor)
    known = len(run.tokenizer.words)
    a_to_z = slice(1 + known, 1 + known + 26)
    assert bool(gradient[1 : 1 + known].any()) is words
    assert bool(gradient[a_to_z].any()) is letters


def test_the_learning_rate_starts_again_at_half_the_peak() -> None:
    settings = PretrainSettings(images=40, batch=4, warmup=2, restart=20, lr=0.8)
    rates = [settings.lr_at(step) for step in range(10)]
    assert rates == pytest.approx([0.4, 0.8, 0.8, 0.6, 0.2, 0.2, 0.4, 0.4, 0.3, 0.1])
    once = replace(settings, restart=0)
    assert [once.lr_at(step) for step in (1, 2, 6, 9)] == pytest.approx(
        [0.8, 0.8, 0.4, 0.4 * (1 + math.cos(7 / 8 * math.pi))]
    )
    past_the_end = replace(settings, restart=41)
    assert [past_the_end.lr_at(step) for step in range(10)] == [once.lr_at(step) for step in range(10)]


def test_the_seed_decides(tmp_path: Path) -> None:
    one = [tensors_hash(Pretraining(SETTINGS, tmp_path).master.state_dict()) for _ in range(2)]
    other = Pretraining(PretrainSettings(seed=4), tmp_path).master.state_dict()
    assert one[0] == one[1] != tensors_hash(other)


def test_bad_places_and_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Choose another --out"):
        Pretraining(SETTINGS, tmp_path / "file" / "out").run()
    (tmp_path / "checkpoint.pt").write_text(json.dumps({"settings": {}}))
    with pytest.raises(OutputError, match="no checkpoint of this version"):
        Pretraining(SETTINGS, tmp_path).run()


def test_divergence_stops_before_the_weights_are_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Pretraining(SETTINGS, tmp_path)
    run.advance()
    run.save()
    loss = Pretraining.batch_loss
    monkeypatch.setattr(Pretraining, "batch_loss", lambda self, step: loss(self, step) * math.nan)
    before = tensors_hash(run.master.state_dict())
    with pytest.raises(
        TrainingDiverged, match=r"step 2:.*last good checkpoint is .*checkpoint\.pt"
    ) as caught:
        run.advance()
    assert caught.value.checkpoint == tmp_path / "checkpoint.pt"
    assert tensors_hash(run.master.state_dict()) == before
