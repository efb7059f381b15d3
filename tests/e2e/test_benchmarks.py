"""The benchmarks run at a tiny size and tell what they should."""

import json
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.roles.phrases import general_pool
from dear.roles.textspan_format import write_textspan

pytestmark = pytest.mark.long
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """``context("train_step", "--tiny")``: what it prints as JSON."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name: str, *arguments: str) -> Any:
        monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        printed = capsys.readouterr().out
        return json.loads(printed) if "--json" in arguments else printed

    return run


def test_a_training_step(context: Any) -> None:
    """Ours has naive's loss and gradients, and the least work."""
    options = ("--tiny", "--classes", "7", "--batch", "3", "--repeats", "1", "--no-memory", "--json")
    found = context("train_step", *options)
    naive, ours, cached = found["rows"]
    assert [row["kind"] for row in found["rows"]] == ["naive", "ours", "view cache"]
    assert max(ours["gap to naive"].values()) < 1e-4
    assert naive["times naive"] == 1
    assert 1 < ours["arithmetic allows"] < cached["arithmetic allows"]
    assert all(row["seconds"] > 0 and row["step MiB"] is None for row in found["rows"])
    assert found["machine"]["torch"] == torch.__version__
    assert str(Path.home()) not in json.dumps(found)


def test_inference(context: Any) -> None:
    found = context("evaluate", "--tiny", "--batch", "3", "--repeats", "1", "--json")
    _, plain, adapted, _, plus = found["rows"]
    assert [row["kind"] for row in (plain, adapted, plus)] == ["plain", "DeAR", "DeAR+"]
    assert plain["time by plain"] == plain["arithmetic by plain"] == 1
    assert 1 < adapted["arithmetic by plain"] < 1.2  # 5 tokens beside 17 in 2 of 6 small layers
    assert 1 < plus["arithmetic by plain"] < 1.02  # one token's contributions and products of 64 numbers


def test_a_step_of_a_method(context: Any) -> None:
    options = ("--tiny", "--classes", "3", "--methods", "maple", "promptkd", "tip-adapter", "--repeats", "1")
    rows = context("methods", *options, "--json")["rows"]
    assert [(row["method"], row["batch"]) for row in rows] == [("maple", 4), ("promptkd", 8)]
    assert all(row["images/s"] == pytest.approx(1000 * row["batch"] / row["ms"]) for row in rows)


def test_official_code_that_is_missing_is_named(context: Any, tmp_path: Path) -> None:
    """With the commands that bring it, before anything is computed; a checkout of another commit too."""
    with pytest.raises(
        SystemExit, match=r"no CoOp, .* of coop: git clone https://\S+/CoOp .* checkout ff61507"
    ):
        context("against_official", str(tmp_path), "--methods", "coop")
    with pytest.raises(SystemExit, match=r"no MMRL, the official code of mmrl\+\+"):
        context("against_official", str(tmp_path), "--methods", "dear")
    (tmp_path / "CoOp").mkdir()
    with pytest.raises(SystemExit, match=r"has no trainers/coop\.py"):
        context("against_official", str(tmp_path), "--methods", "coop")
    subprocess.run(["git", "init", "-q", str(tmp_path / "CoOp")], check=True)
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    empty = ["commit", "-q", "--allow-empty", "-m", "empty"]
    subprocess.run(["git", "-C", str(tmp_path / "CoOp"), *author, *empty], check=True)
    with pytest.raises(SystemExit, match="not at ff61507: git -C"):
        context("against_official", str(tmp_path), "--methods", "coop")


def test_the_line_on_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From rows of the default precision, which come after those in float32; DeAR's losses are others."""
    rows: list[dict[str, Any]] = [
        {"method": method, "code": code, "times official": times, "loss differs by": gap}
        for method, code, times, gap in (
            ("coop", "coop's own", 1, None),
            ("coop", "ours, 32-true", 3.0, 1e-7),
            ("coop", "ours, bf16-mixed", 7.04, 1e-3),
            ("coop", "ours, bf16-mixed, cached views", 20.0, 1e-3),
            ("maple", "ours, 32-true", 2.0, 1e-7),
            ("maple", "ours, bf16-mixed", 4.96, 1e-3),
            ("dear", "ours, bf16-mixed", 99, None),
        )
    ]
    (tmp_path / "against_official.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    monkeypatch.syspath_prepend(str(FOLDER))
    found = runpy.run_path(str(FOLDER / "table.py"))
    found["speed"].__globals__["RESULTS"] = tmp_path
    line = found["speed"]()
    assert "5.0 to 7.0 times" in line
    assert "(`coop` 7.0, `maple` 5.0; ViT-B/16, bf16-mixed)" in line
    assert "20.0 to 20.0 times from cached views" in line


def test_costs_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by hand for one head, two phrases and three images."""
    monkeypatch.syspath_prepend(str(FOLDER))
    found = runpy.run_path(str(FOLDER / "sizes.py"))
    products = 2 * 3 * 512**2 + 2 * 2 * 512 * 80 + 60 * 2 * (2 * 80**2 + 8 * 80)
    assert found["projecting"](1, 2, 3) * 1e9 == pytest.approx(products)


def test_counts_by_backbone_are_those_stored(context: Any, tmp_path: Path) -> None:
    context("growth", "--out", str(tmp_path / "growth.json"))
    stored = json.loads((FOLDER / "results/growth.json").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "growth.json").read_text(encoding="utf-8")) == stored


def test_a_shared_machine(context: Any) -> None:
    """A row for each number of neighbours; who computes and who is in the way ends with the benchmark."""
    options = ("--models", "width 64", "--batch", "2", "--classes", "3", "--neighbours", "0", "1")
    found = context("shared_machine", *options, "--repeats", "1", "--seconds", "0.01", "--json")
    assert [(row["model"], row["neighbours"]) for row in found["rows"]] == [("width 64", 0), ("width 64", 1)]
    ways = ("all cores, waiting busily", "all cores", "one thread")
    assert all(row[f"{way}: {unit}"] > 0 for row in found["rows"] for way in ways for unit in ("s", "CPU s"))


def test_judges_of_roles(context: Any, tmp_path: Path) -> None:
    """Of seven heads picked for locations (7 of 48 heads here), six have phrases of locations."""
    pool = general_pool()
    texts = {
        name: [text for text, concept in zip(pool.phrases, pool.concepts, strict=True) if concept == name]
        for name in {*pool.concepts}
    }
    names = sorted({*texts} - {"location"})
    heads = {(layer, head): names[head % len(names)] for layer in range(9, 13) for head in range(12)}
    picked = [(12, 6), (12, 0), (12, 3), (11, 11), (11, 10), (10, 8), (9, 0)]
    heads.update(dict.fromkeys(picked, "location"))
    spans = {head: texts[name][5 * head[0] % 20 :][:5] for head, name in heads.items()}
    write_textspan(tmp_path / "spans.txt", {head: tuple(phrases) for head, phrases in spans.items()})
    rows = [
        json.loads(line) for line in context("role_judges", "picks", str(tmp_path / "spans.txt")).splitlines()
    ]
    ours = {row["pick"]: row for row in rows if row["table"] == "ours"}
    assert [ours[name]["agree"] for name in ("geo", "setting")] == [[2, 2], [4, 5]]
    assert ours["setting"]["others"] == [heads[10, 6]]
    assert ours["geo"]["of_all_heads"] == [7, 48]
    published = {row["pick"]: row for row in rows if row["table"] == "published"}
    assert published["setting"]["others"] == [None]  # layer 12 head 3 is mixed there, without a concept


def test_startup(context: Any) -> None:
    """Help loads a fraction of what torch alone does."""
    found = {row["command"]: row["modules"] for row in context("startup", "--repeats", "0", "--json")["rows"]}
    floor = found["import torch, for comparison"]
    assert found["dear --help"] < found["an error: dear fit --data nowhere"] < floor
    assert floor < found["dear predict, one image"] < floor + 500
