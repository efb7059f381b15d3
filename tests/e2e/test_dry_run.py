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
        ([*RUN, "--data", "fine-shades", "--shots", "100000"], "fewer than 100000 shots"),
        ([*RUN, "--data", ""], "--data: an entry of '' is empty"),
        ([*RUN, "--data", "fine-shades", "--seeds", "99999999999999999999"], "the seed is 9999999999999999"),
        ([*RUN, "--data", "fine-shades", "--gpus", "1"], "--gpus is for runs on a cluster"),
        (["run", "cross-dataset", "--data", "source"], "source is the source and a target too"),
        (
            ["run", "ablation", "--of", "beta", "--data", "fine-shades", "--dear.beta", "0.5"],
            "beta is 0.5, and the ablation beta varies it",
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
    """They may come: the runs are listed, and why there are no times."""
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
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["seconds"]) == (1, None)
    assert "EuroSAT" in found["why"]
