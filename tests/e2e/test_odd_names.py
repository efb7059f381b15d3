"""Names that are not UTF-8, and a date that few formats can hold: success, or one line that says why."""

import json
import os
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.conftest import Run

CAFE, GREEN = os.fsdecode(b"caf\xe9.png"), os.fsdecode(b"gr\xfcn")
TABLES = Path(str(files("dear.roles"))) / "tables"
YEAR_2300 = 10_413_792_000
pytestmark = pytest.mark.skipif(os.name == "nt", reason="names are UTF-16 there")


def test_fit_predict_and_data_check(tmp_path: Path, run: Run) -> None:
    images, bundle = tmp_path / "images", tmp_path / "bundle"
    for part in ("train", "test"):
        for shade, name in ((200, "red"), (60, GREEN)):
            folder = images / part / name
            folder.mkdir(parents=True)
            red = shade if part == "train" else 260 - shade  # so that images are misclassified
            for number, file in enumerate((CAFE, "dated.png")):
                color = (red, 10 * number + (part == "test"), 255 - red)  # no copies
                Image.new("RGB", (40, 40), color).save(folder / file)
            os.utime(folder / "dated.png", (YEAR_2300, YEAR_2300))
    fit = ["fit", "--data", str(images), "--model", "tiny", "--method", "zero-shot", "--out", str(bundle)]

    # A class's name is written into bundles and records: it must be text.
    out, _ = run(["data", "check", str(images), "--json"], 1)
    assert any("is not in UTF-8. Rename it." in fault for fault in json.loads(out)["faults"])
    assert r"'gr\udcfcn' is not in UTF-8" in run(fit, 2)[1]
    assert not bundle.exists()

    # Any other name is only a path.
    for part in ("train", "test"):
        shutil.move(images / part / GREEN, images / part / "green")
    out, _ = run(["data", "check", str(images), "--json"])
    assert json.loads(out)["faults"] == []
    run([*fit, "--device", "cpu"])
    run(["eval", str(bundle), str(images), "--out", str(tmp_path / "page"), "--device", "cpu"])
    assert "caf?.png" in (tmp_path / "page" / "mistakes.csv").read_text()
    few_shot = [
        "run",
        "few-shot",
        "--data",
        str(images),
        "--model",
        "tiny",
        "--shots",
        "1",
        "--device",
        "cpu",
    ]
    run([*few_shot, "--methods", "zero-shot,gda", "--gda.views", "2", "--out", str(tmp_path / "runs")])
    out, _ = run(["report", str(tmp_path / "runs")])
    assert "2 records." in out
    shutil.move(images / "test", images / GREEN)
    out, _ = run(["predict", str(bundle), str(images), "--device", "cpu", "--json"])
    predicted = {Path(row["image"]).relative_to(images) for row in json.loads(out)["predictions"]}
    assert predicted == {path.relative_to(images) for path in images.rglob("*.png")}
    assert len(predicted) == 8


def test_no_name_makes_a_line_of_its_own(tmp_path: Path, run: Run) -> None:
    """A class that is confused, the label of a recipe, or the source of a role table: all end a line."""
    forged, names = "ok: all is well", ["red", "blue\nok: all is well"]
    for part, labels in (("train", names), ("test", names[::-1])):  # what is tested is wrong
        for shade, name in zip((200, 60), labels, strict=True):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (40, 40), (shade, len(part), number)).save(folder / f"{number}.png")
    images, bundle, recipe = str(tmp_path / "images"), str(tmp_path / "bundle"), tmp_path / "recipe.yaml"
    recipe.write_text(
        f"protocol: few-shot\nout: runs\ndata: [{images}]\nmodel: tiny\nshots: 1\n"
        f"methods: [{{method: zero-shot, label: {json.dumps('x' + names[1][4:])}}}]\n"
    )
    table = json.loads(next(TABLES.glob("*.json")).read_text())
    (roles := tmp_path / "roles.json").write_text(json.dumps(table | {"source": f"me\n{forged}"}))
    cpu = ["--device", "cpu"]
    for command in (
        ["data", "check", images],
        ["fit", images, "--method", "gda", "--model", "tiny", "--out", bundle, "--gda.views", "2", *cpu],
        ["eval", bundle, images, *cpu],
        ["run", "recipe", str(recipe), "--out", str(tmp_path / "runs"), *cpu],
        ["roles", "show", str(roles)],
        ["roles", "compare", str(roles), str(roles)],
    ):
        out, _ = run(command)
        assert forged in out
        assert not any(line.strip().startswith(forged) for line in out.splitlines())
