"""Search by what heads write: features against a naive sum, texts against a slow projection, an index from
build to query, and what is refused.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.adapters.index_encoder import BundleEncoder
from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.cli.main import main
from dear.data.images.decode import decode
from dear.errors import DataError, RoleTableError, SettingsError, UnknownNameError
from dear.retrieval import build
from dear.retrieval.build import build_index
from dear.retrieval.encoder import HeadEncoder, encoder_for
from dear.retrieval.index import Index, open_index
from dear.roles.table import HeadRole, RoleTable
from dear.roles.variants import shuffle_roles, with_role
from tests.helpers.bundles import small_predictor
from tests.helpers.clips import eval_views
from tests.helpers.errors import refuses
from tests.helpers.server import picture

MakeClip = Callable[..., Clip]
CORE = {(2, 1): "shape", (4, 0): "color", (5, 2): "shape"}


def table(clip: Clip) -> RoleTable:
    """Shape owns two heads, color one and texture none."""
    heads = [
        HeadRole(layer, head, "core" if (layer, head) in CORE else "mixed", CORE.get((layer, head)))
        for layer in (5, 4, 2)
        for head in (2, 1, 0)
    ]
    return RoleTable("by hand", clip.identity, ("texture", "shape", "color"), tuple(heads))


def views(dtype: torch.dtype = torch.float32, count: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(count, 3, 20, 20, generator=generator, dtype=torch.float64).to(dtype)


def photos(folder: Path, count: int = 7) -> Path:
    folder.mkdir()
    for seed in range(count):
        picture(seed).save(folder / f"{seed}.png")
    return folder


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-5), (torch.float64, 1e-7)])
def test_features_are_the_sum_of_the_named_heads(
    make_small_clip: MakeClip, dtype: torch.dtype, gap: float
) -> None:
    clip = make_small_clip(dtype=dtype)
    encoder, x = encoder_for(clip, table(clip)), views(dtype)
    assert (encoder.features, encoder.left_out) == (("class", "shape", "color"), ("texture",))
    found, pixels = encoder.of_views(x), clip.normalize_pixels(x)
    assert found.shape == (11, 3, 17)
    torch.testing.assert_close(found[:, 0], clip.encode_image(pixels), rtol=0, atol=gap)
    for feature, places in ((1, [(2, 1), (5, 2)]), (2, [(4, 0)])):
        for row in range(11):
            one = pixels[row : row + 1]
            want = sum(
                head_contributions(clip.image, one, [layer]).heads[0, 0, head] for layer, head in places
            )
            torch.testing.assert_close(found[row, feature], want, rtol=0, atol=gap)


def slow_projection(clip: Clip, places: list[tuple[int, int]], text: Tensor) -> Tensor:
    """Of a text on all that heads can write, vector by vector: Gram-Schmidt over each head's inputs."""
    tower, basis = clip.image, list[Tensor]()
    for layer, head in places:
        block = tower.blocks[layer - 1]
        for at in range(7):
            outputs = torch.zeros(1, 21, dtype=torch.float64)
            outputs[0, 7 * head + at] = 1
            residual = block.ls_1(block.out_proj(outputs) - block.out_proj.bias)[0]
            row = ((residual - residual.mean()) * tower.ln_final.weight) @ tower.projection
            for known in basis:
                row = row - (row @ known) * known
            if row.norm() > 1e-9:
                basis.append(row / row.norm())
    return sum(((text @ one) * one for one in basis), torch.zeros(17, dtype=torch.float64))


@pytest.mark.parametrize("options", [{}, {"layer_scale": 0.3}], ids=str)
def test_texts_are_projected_on_what_the_heads_can_write(
    make_small_clip: MakeClip, options: dict[str, object]
) -> None:
    clip = make_small_clip(dtype=torch.float64, **options)
    encoder = encoder_for(clip, table(clip))
    texts = ["a red circle", "the sea"]
    found, whole = encoder.texts(texts), normalize(clip.encode_text(texts), dim=-1)
    assert found.shape == (2, 3, 17)
    torch.testing.assert_close(found[:, 0], whole, rtol=0, atol=1e-9)
    raw = encoder.of_views(views(torch.float64))
    images = normalize(raw - raw.mean(dim=0), dim=-1)
    for feature, places in ((1, [(2, 1), (5, 2)]), (2, [(4, 0)])):
        for row in range(2):
            part = slow_projection(clip, places, whole[row])
            assert 0.1 < part.norm() < 0.99
            torch.testing.assert_close(found[row, feature], part / part.norm(), rtol=0, atol=1e-8)
            # An image's feature lies in the subspace: the rest of the text does not count.
            want = images[:, feature] @ whole[row] / part.norm()
            torch.testing.assert_close(images[:, feature] @ found[row, feature], want, rtol=0, atol=1e-6)


def test_an_index_of_heads(small_clip: Clip, tmp_path: Path) -> None:
    """Its features are centered by the means over the readable images, computed here in double."""
    folder, out = photos(tmp_path / "photos"), tmp_path / "index"
    (folder / "broken.png").write_bytes(b"no picture")
    encoder = encoder_for(small_clip, table(small_clip))
    built = build_index(encoder, folder, out, batch=3)
    assert (built.features, built.left_out) == (("class", "shape", "color"), ("texture",))
    assert (built.files, len(built.broken)) == (7, 1)
    index = open_index(out)
    known = index.metadata["heads"]
    assert known["heads"] == {"shape": [[2, 1], [5, 2]], "color": [[4, 0]]}
    assert (known["table"], known["sha256"]) == ("by hand", small_clip.identity.sha256)
    again = HeadEncoder(small_clip, known)
    index.check(again)
    raw = again.of_views(eval_views([decode(folder / f"{n}.png") for n in range(7)], 20)).double()
    raw[:, 1:] -= raw[:, 1:].mean(dim=0)
    features = normalize(raw, dim=-1)
    cosines = torch.einsum("ifd,fd->if", features, features[3])
    score = (cosines[:, 2] + 0.5 * cosines[:, 1]) / 1.5
    hits = index.query_image(again, folder / "3.png", {"color": 1, "shape": 0.5}, count=4)
    order = [f"{i}.png" for i in score.argsort(descending=True).tolist() if i != 3]
    assert [hit.path for hit in hits] == order[:4]
    assert hits[0].by["color"] == pytest.approx(float(cosines[int(hits[0].path[0]), 2]), abs=2e-3)
    text = again.texts(["a red circle"])[0].double()
    [best, *_] = index.query_text(again, "a red circle", {"color": 1})
    assert best.path == f"{int((features[:, 2] @ text[2]).argmax())}.png"
    words = {"color": "a red circle"}
    [mixed] = index.query_image(again, folder / "3.png", {"class": 1, "color": 1}, count=1, words=words)
    want = (features[:, 0] @ features[3, 0] + features[:, 2] @ text[2]) / 2
    want[3] = -1
    assert mixed.path == f"{int(want.argmax())}.png"
    assert mixed.score == pytest.approx(float(want.max()), abs=2e-3)


def test_means_are_those_of_the_first_commit(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files evenly spread, each encoded once; later images keep them."""
    monkeypatch.setattr(build, "CHUNK", 4)
    folder, out = photos(tmp_path / "photos"), tmp_path / "index"
    encoder = encoder_for(small_clip, table(small_clip))
    steps = list[tuple[int, int]]()
    built = build_index(encoder, folder, out, batch=2, progress=lambda _, done, of: steps.append((done, of)))
    assert built.encoded == 7
    assert steps == [(0, 7), (2, 7), (4, 7), (4, 7), (6, 7), (7, 7)]
    means = Index(built.index).metadata["means"]
    raw = encoder.of_views(eval_views([decode(folder / f"{n}.png") for n in (0, 1, 3, 5)], 20))
    torch.testing.assert_close(torch.tensor(means)[1:], raw.mean(dim=0)[1:], rtol=0, atol=1e-6)
    assert not any(means[0])
    picture(20).save(folder / "new.png")
    other = build_index(encoder, folder, out)
    assert Index(other.index).metadata["means"] == means
    assert len(open_index(out).query_text(encoder, "red", {"color": 1})) == 8


def test_what_is_refused(small_clip: Clip, make_small_clip: MakeClip, tmp_path: Path) -> None:
    folder, out = photos(tmp_path / "photos"), tmp_path / "index"
    roles, other = table(small_clip), make_small_clip(seed=1)
    far = replace(roles, heads=(HeadRole(6, 0, "core", "color"),))
    named = replace(roles, attributes=("class",), heads=(HeadRole(4, 0, "core", "class"),))
    pairs = (other, roles), (small_clip, with_role(roles, "mixed")), (small_clip, far), (small_clip, named)
    for clip, wrong in pairs:
        with pytest.raises(RoleTableError):
            encoder_for(clip, wrong)
    encoder, alone = encoder_for(small_clip, roles), photos(tmp_path / "alone", 1)
    for name in ("0.png", "copy.png"):
        (alone / name).write_bytes((alone / "0.png").read_bytes())
        refuses(DataError, "at least two", build_index, encoder, alone, tmp_path / "none", batch=1)
    build_index(encoder, folder, out)
    index = open_index(out)
    heads = index.metadata["heads"]
    bundle = BundleEncoder(small_predictor(small_clip))
    for model in (encoder_for(small_clip, shuffle_roles(roles, 1)), bundle, HeadEncoder(other, heads)):
        refuses(DataError, "of small", index.query_text, model, "red", {"color": 1})
        refuses(DataError, "of small", build_index, model, folder, out)
    refuses(UnknownNameError, "texture", index.query_image, encoder, folder / "0.png", {"texture": 1})
    with pytest.raises(SettingsError, match="shape"):
        index.query_image(encoder, folder / "0.png", {"color": 1}, words={"shape": "circle"})


def test_what_the_commands_refuse(
    small_clip: Clip, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dear.backbone.loading.load.load_clip", lambda *_args, **_options: small_clip)
    monkeypatch.setattr("dear.backbone.loading.load.folder_for", lambda model, *_: model)
    folder, out, roles = photos(tmp_path / "photos"), tmp_path / "index", tmp_path / "roles.json"
    table(small_clip).save(roles)
    build = ["index", "build", "--features", "heads", str(folder), "--out", str(out), "--roles", str(roles)]
    assert main(build) == 0
    assert "left out, for they own no head: texture" in capsys.readouterr().out
    query = ["index", "query", str(out)]
    by_image = [*query, str(folder / "3.png"), "--by", "color,shape"]
    by_text = [*query, "red", "--text", "--by", "color"]
    assert main(by_text) == 0
    for words, reason in (
        ([*by_text, "--bundle", "DIR"], "omit --bundle"),
        ([*by_text, "--words", "color=red"], "for an image query"),
        ([*by_image, "--words", "red"], "as NAME=TEXT"),
        ([*by_image, "--words", "class=red"], "not compared by"),
        (["index", "build", "--features", "heads", "DIR", str(folder)], "takes no bundle"),
        (["index", "build", "DIR", str(folder), "--roles", "discovered"], "are for --features heads"),
    ):
        capsys.readouterr()
        assert main(words) == 2
        assert reason in capsys.readouterr().err
