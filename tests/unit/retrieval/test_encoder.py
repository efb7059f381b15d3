"""Search by what heads write: features against a naive sum, texts against a slow projection, an index from
build to query, and what is refused.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.adapters.index_encoder import BundleEncoder
from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions, written_subspace
from dear.cli.main import main
from dear.data.images.decode import decode
from dear.errors import DataError, RoleTableError, SettingsError, UnknownNameError
from dear.retrieval.build import build_index
from dear.retrieval.encoder import HeadEncoder, core_heads, encoder_for, head_facts
from dear.retrieval.index import open_index
from dear.roles.table import HeadRole, RoleTable
from tests.unit.retrieval.solid import Plain, gallery
from tests.unit.serving.small import picture, small_predictor
from tests.views import eval_views

MakeClip = Callable[..., Clip]
CORE = {(2, 1): "shape", (4, 0): "color", (5, 2): "shape"}


def table(clip: Clip) -> RoleTable:
    """Shape owns two heads, colour one and texture none."""
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
def test_features_are_the_centred_sum_of_the_named_heads(
    make_small_clip: MakeClip, dtype: torch.dtype, gap: float
) -> None:
    clip = make_small_clip(dtype=dtype)
    x = views(dtype)
    made = head_facts(clip, table(clip), [x[:4], x[4:9]])
    assert (list(made["heads"]), made["left_out"], made["images"]) == (["shape", "color"], ["texture"], 9)
    found = HeadEncoder(clip, made).of_views(x)
    assert found.shape == (11, 3, 17)
    pixels = clip.normalize_pixels(x)
    torch.testing.assert_close(found[:, 0], normalize(clip.encode_image(pixels), dim=-1), rtol=0, atol=gap)
    for feature, places in ((1, [(2, 1), (5, 2)]), (2, [(4, 0)])):
        for row in range(11):
            one = pixels[row : row + 1]
            parts = {at: head_contributions(clip.image, one, [at[0]]).heads[0, 0, at[1]] for at in places}
            whole = {
                at: torch.stack([
                    head_contributions(clip.image, pixels[i : i + 1], [at[0]]).heads[0, 0, at[1]]
                    for i in range(9)
                ]).mean(dim=0)
                for at in places
            }  # fmt: skip
            want = torch.zeros(17, dtype=dtype)
            for at in places:
                want = want + parts[at] - whole[at]
            torch.testing.assert_close(found[row, feature], want / want.norm(), rtol=0, atol=gap)


def test_the_class_and_the_other_terms_are_all_of_the_embedding(make_small_clip: MakeClip) -> None:
    """With every head owned, the sums and what belongs to no head add up to CLIP's own embedding."""
    clip = make_small_clip(dtype=torch.float64)
    every = tuple(HeadRole(at, head, "core", f"a{head}") for at in range(1, 6) for head in range(3))
    owning_all = RoleTable("all", clip.identity, ("a0", "a1", "a2"), every)
    encoder = HeadEncoder(clip, head_facts(clip, owning_all, [views(torch.float64)]))
    whole, sums = encoder.sums(views(torch.float64))
    pixels = clip.normalize_pixels(views(torch.float64))
    terms = head_contributions(clip.image, pixels, range(1, 6))
    torch.testing.assert_close(
        sums.sum(dim=1) + terms.mlps.sum(dim=1) + terms.remainder, whole, rtol=0, atol=1e-9
    )
    torch.testing.assert_close(whole, clip.encode_image(pixels), rtol=0, atol=1e-9)


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
    encoder = HeadEncoder(clip, head_facts(clip, table(clip), [views(torch.float64)]))
    texts = ["a red circle", "the sea"]
    found, whole = encoder.texts(texts), normalize(clip.encode_text(texts), dim=-1)
    assert found.shape == (2, 3, 17)
    torch.testing.assert_close(found[:, 0], whole, rtol=0, atol=1e-9)
    images = encoder.of_views(views(torch.float64))
    for feature, places in ((1, [(2, 1), (5, 2)]), (2, [(4, 0)])):
        for row in range(2):
            part = slow_projection(clip, places, whole[row])
            assert 0.1 < part.norm() < 0.99
            torch.testing.assert_close(found[row, feature], part / part.norm(), rtol=0, atol=1e-8)
            # An image's feature lies in the subspace: the rest of the text does not count.
            want = images[:, feature] @ whole[row] / part.norm()
            torch.testing.assert_close(images[:, feature] @ found[row, feature], want, rtol=0, atol=1e-6)


def test_contributions_lie_in_the_subspace_of_their_head(make_small_clip: MakeClip) -> None:
    clip = make_small_clip(dtype=torch.float64)
    rows = written_subspace(clip.image, [(4, 1)])
    assert rows.shape == (7, 17)
    torch.testing.assert_close(rows @ rows.T, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-9)
    written = head_contributions(clip.image, clip.normalize_pixels(views(torch.float64)), [4]).heads[:, 0, 1]
    torch.testing.assert_close(written @ rows.T @ rows, written, rtol=0, atol=1e-9)
    assert written_subspace(clip.image, [(4, 1), (4, 1), (5, 0)]).shape == (14, 17)
    assert written_subspace(clip.image, [(1, 0), (4, 1), (5, 0)]).shape == (17, 17)


def test_an_index_of_heads(small_clip: Clip, tmp_path: Path) -> None:
    folder, out = photos(tmp_path / "photos"), tmp_path / "index"
    (folder / "broken.png").write_bytes(b"no picture")
    encoder = encoder_for(small_clip, table(small_clip), folder, out, batch=3)
    assert encoder.head_facts["images"] == 7
    built = build_index(encoder, folder, out, batch=3)
    assert (built.features, built.left_out) == (("class", "shape", "color"), ("texture",))
    assert (built.files, len(built.broken)) == (7, 1)
    index = open_index(out)
    known = index.metadata["heads"]
    assert known["heads"] == {"shape": [[2, 1], [5, 2]], "color": [[4, 0]]}
    assert (known["table"], known["convention"], known["sha256"]) == (
        "by hand", "exact", small_clip.identity.sha256,
    )  # fmt: skip
    again = HeadEncoder(small_clip, known)
    index.check(again)
    features = again.of_views(eval_views([decode(folder / f"{n}.png") for n in range(7)], 20))
    cosines = torch.einsum("ifd,fd->if", features, features[3]).double()
    score = (cosines[:, 2] + 0.5 * cosines[:, 1]) / 1.5
    hits = index.query_image(again, folder / "3.png", {"color": 1, "shape": 0.5}, count=4)
    assert [hit.path for hit in hits] == [
        f"{i}.png" for i in score.argsort(descending=True).tolist() if i != 3
    ][:4]
    assert hits[0].by["color"] == pytest.approx(float(cosines[int(hits[0].path[0]), 2]), abs=2e-3)
    text = again.texts(["a red circle"])[0]
    [best, *_] = index.query_text(again, "a red circle", {"color": 1})
    assert best.path == f"{int((features[:, 2] @ text[2]).argmax())}.png"
    mixed = index.query_image(
        again, folder / "3.png", {"class": 1, "color": 1}, count=1, words={"color": "a red circle"}
    )
    want = (features[:, 0] @ features[3, 0] + features[:, 2] @ text[2]) / 2
    want[3] = -1
    assert mixed[0].path == f"{int(want.argmax())}.png"
    assert mixed[0].score == pytest.approx(float(want.max()), abs=2e-3)


def test_means_are_fixed_by_the_first_build(small_clip: Clip, tmp_path: Path) -> None:
    folder, out = photos(tmp_path / "photos"), tmp_path / "index"
    first = encoder_for(small_clip, table(small_clip), folder, out)
    build_index(first, folder, out)
    picture(20).save(folder / "new.png")
    second = encoder_for(small_clip, table(small_clip), folder, out)
    assert second.identity == first.identity
    assert build_index(second, folder, out).encoded == 1
    elsewhere = encoder_for(small_clip, table(small_clip), folder, tmp_path / "other")
    assert elsewhere.identity != first.identity
    with pytest.raises(DataError, match="features of heads of small"):
        open_index(out).check(elsewhere)


def test_what_is_refused(small_clip: Clip, make_small_clip: MakeClip, tmp_path: Path) -> None:
    folder, out = photos(tmp_path / "photos"), tmp_path / "index"
    other = make_small_clip(seed=1)
    roles = table(small_clip)
    with pytest.raises(RoleTableError, match=r"computed from small.*dear roles discover"):
        encoder_for(other, roles, folder, out)
    assert not out.exists()
    with pytest.raises(RoleTableError, match=r"no attribute of the role table .* owns a head"):
        encoder_for(small_clip, roles.uniform("mixed"), folder, out)
    far = replace(roles, heads=(HeadRole(6, 0, "core", "color"),))
    with pytest.raises(RoleTableError, match="color owns layer 6 head 0, but small has 5 layers of 3 heads"):
        encoder_for(small_clip, far, folder, out)
    named = replace(roles, attributes=("class",), heads=(HeadRole(4, 0, "core", "class"),))
    with pytest.raises(RoleTableError, match="an attribute named 'class'"):
        encoder_for(small_clip, named, folder, out)
    with pytest.raises(SettingsError, match="at least 1"):
        encoder_for(small_clip, roles, folder, out, batch=0)
    alone = photos(tmp_path / "alone", 1)
    with pytest.raises(DataError, match="at least two different images"):
        encoder_for(small_clip, roles, alone, out)
    (alone / "copy.png").write_bytes((alone / "0.png").read_bytes())
    with pytest.raises(DataError, match="at least two different images"):
        encoder_for(small_clip, roles, alone, out, batch=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image files"):
        encoder_for(small_clip, roles, tmp_path / "empty", out)

    encoder = encoder_for(small_clip, roles, folder, out)
    build_index(encoder, folder, out)
    index = open_index(out)
    with pytest.raises(DataError, match="features of two models are not comparable"):
        HeadEncoder(other, index.metadata["heads"])
    with pytest.raises(DataError, match="features of heads of small"):
        index.check(BundleEncoder(small_predictor(small_clip)))
    with pytest.raises(DataError, match="built with other heads"):
        encoder_for(small_clip, roles.shuffled(1), folder, out)
    with pytest.raises(UnknownNameError, match="texture"):
        index.query_image(encoder, folder / "0.png", {"texture": 1})
    with pytest.raises(SettingsError, match="words for shape, which the images are not compared by"):
        index.query_image(encoder, folder / "0.png", {"color": 1}, words={"shape": "circle"})
    with pytest.raises(DataError, match="means do not fit"):
        HeadEncoder(small_clip, {**encoder.head_facts, "mean": encoder.head_facts["mean"][:1]})
    with pytest.raises(DataError, match="means do not fit"):
        HeadEncoder(small_clip, {**encoder.head_facts, "heads": {}, "mean": []})
    plain = tmp_path / "plain"
    build_index(Plain(), gallery(tmp_path / "gallery"), plain)
    with pytest.raises(DataError, match="features of a bundle, not of heads"):
        encoder_for(small_clip, roles, tmp_path / "gallery", plain)


def test_core_heads_are_in_the_order_of_the_table(small_clip: Clip) -> None:
    found = core_heads(table(small_clip))
    assert list(found.items()) == [("texture", ()), ("shape", ((2, 1), (5, 2))), ("color", ((4, 0),))]


@pytest.fixture
def loaded(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> Clip:
    """The small CLIP in place of whatever a command loads."""
    monkeypatch.setattr("dear.backbone.load.load_clip", lambda *_args, **_options: small_clip)
    monkeypatch.setattr("dear.backbone.load.folder_for", lambda model, *_: model)
    return small_clip


def test_the_commands(loaded: Clip, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, roles = photos(tmp_path / "photos"), tmp_path / "index", tmp_path / "roles.json"
    table(loaded).save(roles)
    build = ["index", "build", "--features", "heads", str(folder), "--out", str(out), "--roles", str(roles)]
    assert main(build) == 0
    told = capsys.readouterr().out
    assert "features: class, shape, color" in told
    assert "left out, for they own no head: texture" in told
    query = ["index", "query", str(out)]
    ask = [*query, str(folder / "3.png"), "--by", "color,shape", "--weights", "1,0.5", "--json"]
    assert main(ask) == 0
    found = json.loads(capsys.readouterr().out)["hits"]
    encoder = HeadEncoder(loaded, open_index(out).metadata["heads"])
    want = open_index(out).query_image(encoder, folder / "3.png", {"color": 1, "shape": 0.5})
    assert [one["path"] for one in found] == [hit.path for hit in want]
    assert main([*ask, "--words", "color=red"]) == 0
    assert [one["by"]["color"] for one in json.loads(capsys.readouterr().out)["hits"]] != [
        one["by"]["color"] for one in found
    ]
    assert main([*query, "red", "--text", "--by", "color"]) == 0
    for words, reason in (
        ([*query, "red", "--text", "--by", "texture"], "unknown feature"),
        ([*query, "red", "--text", "--by", "color", "--bundle", "DIR"], "omit --bundle"),
        ([*query, "red", "--text", "--by", "color", "--words", "color=red"], "for an image query"),
        ([*ask, "--words", "red"], "as NAME=TEXT"),
        ([*ask, "--words", "class=red"], "not compared by"),
        (["index", "build", "--features", "heads", "DIR", str(folder)], "takes no bundle"),
        (["index", "build", str(folder)], "give a bundle and a folder"),
        (["index", "build", "DIR", str(folder), "--roles", "discovered"], "are for --features heads"),
    ):
        capsys.readouterr()
        assert main(words) == 2
        assert reason in capsys.readouterr().err


@pytest.mark.usefixtures("loaded")
def test_a_table_of_other_weights(
    make_small_clip: MakeClip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = tmp_path / "roles.json"
    table(make_small_clip(seed=1)).save(roles)
    build = ["index", "build", "--features", "heads", str(photos(tmp_path / "photos")), "--roles", str(roles)]
    assert main([*build, "--out", str(tmp_path / "index")]) == 2
    assert "head numbers have no common meaning" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
