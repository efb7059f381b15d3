"""Bad input through the command line: an exit code, one clear line on stderr, and nothing left behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dear.backbone import tiny
from dear.backbone.clip import Clip, Identity
from dear.cli.main import main
from dear.evaluation import records, trial
from dear.roles.table import RoleTable
from tests.e2e.refusals import RUN, SHORT, refused


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["demo", "--tasks", "far-stikers"], "'album-stickers'"),
        ([*RUN, "--data", "far-stikers"], "street-signs"),  # all names are listed
        *[
            (["run", protocol, "--data", "far-stikers"], "'album-stickers'")
            for protocol in ("few-shot", "ablation", "cross-dataset", "domain-generalization")
        ],
        ([*RUN, "--data", "./nowhere"], "does not exist"),
        ([*RUN, "--methods", "zero-shot,deer"], "'dear'"),
        ([*RUN, "--data", "PHOTOS", "--model", "ViT-B-61"], "'ViT-B-16'"),
        ([*RUN, "--data", "PHOTOS", "--model", "ViT-B-32", "--pretrained", "laion3b"], "laion2b"),
    ],
)
def test_names_of_what_is_not_there(
    words: list[str], key: str, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--shots", "2"] if "PHOTOS" in words else []
    assert key in refused(
        [str(photos) if word == "PHOTOS" else word for word in [*words, *more]], out, capsys
    )


def test_a_method_that_does_not_fit_stops_all_before_the_first_run(
    small: Path, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *RUN,
        "--data",
        str(photos),
        "--shots",
        "2",
        "--methods",
        "zero-shot,coop",
        "--roles",
        str(small),
    ]
    assert "100 context tokens" in refused([*words, "--coop.tokens", "100"], out, capsys)
    assert "not trained on" in refused([*words, "--coop.class-specific"], out, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("more", [[], ["--jobs", "2"], ["--dry-run"]])
def test_a_gpu_where_there_is_none(more: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused([*RUN, "--data", "mixed-paints", "--device", "cuda", *more], out, capsys)
    assert "choose auto or cpu" in line


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors", tiny.WEIGHTS])
def test_truncated_and_foreign_weights(
    name: str, photos: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = tmp_path / name, [*RUN, "--data", str(photos), "--shots", "2", "--model"]
    if name == tiny.WEIGHTS:
        for part in (tiny.WEIGHTS, tiny.VOCABULARY):
            (tmp_path / part).write_bytes((tiny.FOLDER / part).read_bytes())
        words += ["tiny", "--pretrained", str(tmp_path)]
    else:
        state = {"conv1.weight": torch.zeros(7, 11)}
        torch.save(state, path) if path.suffix == ".pt" else save_file(state, path)
        words += ["ViT-B-32", "--pretrained", str(path)]
        assert "another architecture" in refused(words, out, capsys)
    path.write_bytes(path.read_bytes()[:-99])
    assert str(path) in refused(words, out, capsys)


def test_a_role_table_of_other_weights(
    small: Path, small_clip: Clip, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = RoleTable.load(small)
    other = Identity("tiny", "elsewhere", "0" * 64)
    RoleTable(table.source, other, table.attributes, table.heads).save(small)
    words = [*RUN, "--data", str(photos), "--methods", "dear", "--roles", str(small), *SHORT]
    line = refused(words, out, capsys)
    assert all(name in line for name in ("tiny/elsewhere", str(small_clip.identity)))
    assert "--dear.roles-from-other-weights" in line
    # ... and the way out that the message names works.
    assert main([*words, "--out", str(out), "--dear.roles-from-other-weights"]) == 0
    assert len([*out.glob("*.json")]) == 1
    capsys.readouterr()
    small.write_text(small.read_text()[:99])
    assert "roles.json" in refused(words, out.with_name("damaged"), capsys)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--dear.alpha-cls 1", "alpha_cls"),
        ("--dear.first 13", "from 1 to 12"),
        ("--train.epochs 0", "epochs"),
        ("--shots 0", "shots"),
        ("--shots 5", "fewer than 5 shots"),
        ("--mask role", "--mask"),
        ("--seeds one", "--seeds"),
        ("--jobs 0", "jobs"),
        ("--jobs 2 --cluster local", "--jobs and --cluster"),
        ("--gpus -1", "gpus"),
        ("--select test", "--select"),
        ("--select val", "no validation images"),
        ("--mmrl++.beta 0.5", "--mmrlpp.beta applies to mmrl++, which is not run: dear"),
        ("--methods coop --dear.first 9", "--dear.first applies to dear, which is not run"),
        ("--methods coop --role-variant shuffled", "--role-variant applies to dear or dear+"),
        ("--promptsrc.text-weight -5", "promptsrc.text_weight"),
        ("--train.warmup-epochs 2", "warmup_epochs"),
        ("--train.precision 16-mixed", "16-mixed needs a GPU"),
    ],
)
def test_settings_out_of_range(
    words: str, key: str, small: Path, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {"--data": str(photos), "--methods": "dear", "--roles": str(small)}
    usual |= dict(zip(SHORT[::2], SHORT[1::2], strict=True))
    common = [word for name, value in usual.items() if name not in words for word in (name, value)]
    assert key in refused([*RUN, *common, *words.split()], out, capsys)


def test_a_place_that_cannot_be_written(
    small: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    words = [*RUN, "--data", str(photos), "--roles", str(small), *SHORT]
    for place in (tmp_path / "file", tmp_path / "file" / "runs"):
        assert main([*words, "--out", str(place)]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert str(place) in line
        assert "--out" in line
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("during", ["training", "test", "the write"])
def test_ctrl_c(
    during: str, small: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def stop(*_args: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    words = [
        *RUN,
        "--data",
        str(photos),
        "--methods",
        "dear",
        "--roles",
        str(small),
        *SHORT,
        "--out",
        str(out),
    ]
    places = {"training": (trial, "train"), "test": (trial, "predict"), "the write": (records.os, "fsync")}
    with monkeypatch.context() as patch:
        patch.setattr(*places[during], stop)
        assert main(words) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == "dear: interrupted: give the same command to continue"
    assert {path.name for path in out.iterdir()} <= {"unfinished"}
    assert main(words) == 0  # and the same command does it all
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".json", ".npz"}
    assert len([*out.glob("*.json")]) == 1


def test_nan_in_training(
    small: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dear.methods.dear.method import Dear

    loss = Dear.loss
    nan = float("nan")
    monkeypatch.setattr(Dear, "loss", lambda *args: {name: nan * v for name, v in loss(*args).items()})
    words = [*RUN, "--data", str(photos), "--methods", "dear", "--roles", str(small), *SHORT]
    assert "diverged at step 1" in (line := refused(words, out, capsys))
    assert "--train.lr" in line
