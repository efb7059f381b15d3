"""Pretraining: which captions describe which images, the loss by slow loops, and runs that go on bit for
bit.
"""

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.clip import tensors_hash, weights_hash
from dear.backbone.loading import tiny
from dear.errors import OutputError
from dear.world.factors import FACTOR_NAMES, STYLES
from dear.world.scene import draw_scenes
from tests.helpers.errors import refuses
from tools import pretraining
from tools.pretraining import (
    FACTS,
    Pretraining,
    PretrainSettings,
    early_share,
    matches,
    mlp_share,
    mlps_of_class_token,
    multi_positive_loss,
    visible_factors,
)

SMALL = {
    "embed_dim": 17,
    "vision_cfg": {
        "image_size": 24, "patch_size": 8, "width": 21, "head_width": 7, "layers": 2, "mlp_ratio": 2.0,
    },
    "text_cfg": {
        "context_length": 23, "vocab_size": 0, "width": 22, "heads": 2, "layers": 1, "mlp_ratio": 2.0,
    },
}  # fmt: skip
SETTINGS = PretrainSettings(images=44, batch=8, warmup=2, seed=3, spelled=0.3)  # 6 steps


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "config", lambda: copy.deepcopy(SMALL))


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

    def cross_entropy(logits: Sequence[float], chosen: Sequence[bool]) -> float:
        total = math.log(sum(math.exp(v) for v in logits))
        return sum(total - v for v, on in zip(logits, chosen, strict=True) if on) / sum(chosen)

    by_row = sum(map(cross_entropy, s, p)) / 3
    by_column = sum(map(cross_entropy, zip(*s, strict=True), zip(*p, strict=True))) / 7
    assert float(multi_positive_loss(similarity, positive)) == pytest.approx(
        (by_row + by_column) / 2, abs=1e-12
    )


def test_a_sketch_shows_no_color() -> None:
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

    monkeypatch.setattr(pretraining, "multi_positive_loss", watched)
    Pretraining(SETTINGS, tmp_path).batch_loss(0)
    (positive,) = seen
    assert positive.shape == (8, 24)  # two captions an image, and one of its texture alone
    assert all(positive[c % 8, c] for c in range(24))


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
    names = ["checkpoint.pt", "model.safetensors", "pretraining.json", "vocabulary.json"]
    assert sorted(p.name for p in (tmp_path / "cut").iterdir()) == names
    for name in ("model.safetensors", "vocabulary.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    clip = tiny.load(tmp_path / "whole")
    assert (clip.identity.model, clip.identity.pretrained) == ("tiny", "whole")
    rounded = {name: tensor.half().float() for name, tensor in whole.master.state_dict().items()}
    assert clip.identity.sha256 == weights_hash(rounded, {"vocabulary": whole.tokenizer.words})
    assert clip.tokenizer.words == whole.tokenizer.words  # type: ignore[attr-defined]
    assert (
        clip.encode_image(torch.zeros(1, 3, 24, 24)).shape
        == clip.encode_text(["a red house"]).shape
        == (1, 17)
    )

    other = Pretraining(PretrainSettings(images=44, batch=8, warmup=2, seed=4), tmp_path / "whole")
    refuses(OutputError, ("checkpoint.pt", "other settings"), other.run)


@pytest.mark.parametrize("cut", [3, 300])
def test_a_damaged_checkpoint_is_refused(cut: int, tmp_path: Path) -> None:
    run = Pretraining(SETTINGS, tmp_path)
    run.save()
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-cut])
    refuses(OutputError, "is damaged", run.resume)


def test_the_share_gathered_early_by_a_slow_loop() -> None:
    tokens = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(4), dtype=torch.float64).float()
    rows = tokens.double().tolist()

    def variance(vectors: list[list[float]]) -> float:
        mean = [sum(v[i] for v in vectors) / len(vectors) for i in range(7)]
        return sum(sum((v[i] - mean[i]) ** 2 for i in range(7)) for v in vectors) / len(vectors)

    want = variance([row[0] for row in rows]) / variance([patch for row in rows for patch in row[1:]])
    assert float(early_share(tokens)) == pytest.approx(want, rel=1e-5)
    same = torch.cat([tokens[:1, :1].expand(3, 1, 7), tokens[:, 1:]], dim=1)
    assert float(early_share(same)) == pytest.approx(0, abs=1e-10)
    tokens.requires_grad_()
    early_share(tokens).backward()
    assert tokens.grad[:, 0].any()
    assert not tokens.grad[:, 1:].any()


def test_what_the_mlps_write_into_the_class_token_by_a_slow_loop(tmp_path: Path) -> None:
    run = Pretraining(replace(SETTINGS, bf16=False), tmp_path)
    x = torch.randn(3, 10, 21, generator=torch.Generator().manual_seed(5))
    with torch.no_grad(), mlps_of_class_token(run.image, 1) as written:
        end = run.image.span(x, 1, read=torch.zeros(1, dtype=torch.long))[:, 0]
    heads, mlps = torch.zeros(3, 21), torch.zeros(3, 21)
    for block in run.image.blocks:
        outputs = block.head_outputs(x)
        attended = block.out_proj(outputs.transpose(1, 2).flatten(2))
        expanded = block.mlp(block.ln_2(x + attended))
        heads, mlps = heads + attended[:, 0], mlps + expanded[:, 0]
        x = x + attended + expanded
    torch.testing.assert_close(torch.stack(written).sum(dim=0), mlps)
    torch.testing.assert_close(end, x[:, 0])

    def variance(vectors: torch.Tensor) -> float:
        rows = vectors.double().tolist()
        mean = [sum(row[i] for row in rows) / len(rows) for i in range(21)]
        return sum((row[i] - mean[i]) ** 2 for row in rows for i in range(21)) / len(rows)

    assert float(mlp_share(mlps, heads)) == pytest.approx(variance(mlps) / variance(heads), rel=1e-5)
    run.image(torch.zeros(1, 3, 24, 24))
    assert len(written) == 2  # nothing is kept afterwards


def test_a_run_goes_on_from_the_weights_of_another(tmp_path: Path) -> None:
    Pretraining(SETTINGS, tmp_path / "one").run()
    other = replace(SETTINGS, seed=7, emphasis="color, texture")
    run = Pretraining(other, tmp_path / "two", start=tmp_path / "one")
    first = tiny.load(tmp_path / "one")
    words = {"vocabulary": run.tokenizer.words}
    assert weights_hash(run.master.state_dict(), words) == first.identity.sha256
    facts = run.run(every=2)
    assert facts["start"]["sha256"] == first.identity.sha256
    assert facts["start"]["run"]["settings"]["seed"] == 3
    assert json.loads((tmp_path / "two" / FACTS).read_text()) == facts
    from_random = Pretraining(other, tmp_path / "two")
    refuses(OutputError, "other settings", from_random.run)


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
