"""A dry run refuses what the run itself would refuse, and writes nothing."""

import json
from pathlib import Path

import pytest

from dear.cli.main import main

RUN = ["run", "base-to-novel"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*RUN, "--data", "far-stikers"], "unknown data set 'far-stikers'"),
        ([*RUN, "--data", "mixed-paints", "--shots", "100000"], "fewer than 100,000 shots"),
        ([*RUN, "--data", ""], "--data: an entry of '' is empty"),
        ([*RUN, "--data", "mixed-paints", "--seeds", "99999999999999999999"], "the seed is 9999999999999999"),
        ([*RUN, "--data", "mixed-paints", "--gpus", "1"], "--gpus is for runs on a cluster"),
        (["run", "cross-dataset", "--data", "source"], "source is both the source and a target"),
        (
            ["run", "ablation", "--of", "beta", "--data", "mixed-paints", "--dear.beta", "0.5"],
            "beta is 0.5, but the ablation beta varies it",
        ),
    ],
)
def test_a_dry_run_refuses_what_a_run_does(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--dry-run"]):
        assert main([*words, *more, "--out", str(tmp_path / "out")]) == 2
        line = capsys.readouterr().err
        assert message in line
        assert line.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_a_dry_run_without_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may come: the runs are listed, and why they cannot be made now; the run is refused for it."""
    monkeypatch.setenv("DEAR_DATA", str(tmp_path))
    words = [
        *RUN,
        "--data",
        "EuroSAT",
        "--methods",
        "zero-shot",
        "--out",
        str(tmp_path),
        "--dry-run",
        "--json",
    ]
    assert main(words) == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["runs"] == 1
    assert [run["done"] for run in found["planned"]] == [False]
    assert "EuroSAT" in found["why"]
    assert said.err == f"dear: error: {found['why']}\n"
    assert main([word for word in words if word != "--dry-run"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == found["why"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "nothing/there.pt"], "there.pt"),
        (["--roles", "nothing/there.json"], "there.json"),
        (["--out", "pyproject.toml/out"], "cannot write to"),
        (["--methods", "coop", "--coop.tokens", "1000"], "tokens"),
    ],
)
def test_what_stops_a_run_before_it_begins_stops_a_dry_run(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    said = []
    for dry in ([], ["--dry-run"]):
        assert main([*RUN, "--data", "mixed-paints", *more, *dry]) == 2
        said.append(capsys.readouterr().err)
        assert message in said[-1]
    assert said[0].startswith("dear: error: ")
    assert said[1].splitlines()[-1].startswith("dear: error: ")
