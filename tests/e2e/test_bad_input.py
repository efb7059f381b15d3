"""Bad input through the command line: an exit code, one clear line on stderr, and nothing left behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone import tiny
from dear.backbone.clip import Clip, Identity
from dear.cli.main import main
from dear.evaluation import records, trial
from dear.roles.table import RoleTable
from tests.e2e.refusals import RUN, SHORT, refused


def test_unknown_task(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused([*RUN, "--data", "far-stikers"], out, capsys)
    assert (
        "unknown data set 'far-stikers'. Did you mean 'album-stickers'? Known data sets: album-stickers, "
        in line
    )
    assert "street-signs" in line


def test_unknown_task_of_the_demo(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean 'album-stickers'?" in refused(["demo", "--tasks", "far-stikers"], out, capsys)


def test_a_folder_that_is_not_there(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refused([*RUN, "--data", str(tmp_path / "nowhere")], out, capsys)


def test_unknown_method(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused([*RUN, "--methods", "zero-shot,deer"], out, capsys)
    assert "unknown method 'deer'. Did you mean 'dear'? Known methods: dear, " in line


def test_unknown_backbone(photos: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused([*RUN, "--data", str(photos), "--model", "ViT-B-61"], out, capsys)
    assert "unknown backbone 'ViT-B-61'. Did you mean 'ViT-B-16'? Known backbones: ViT-B-16, " in line
    assert "more" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_where_there_is_none(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--jobs", "2"], ["--dry-run"]):
        line = refused([*RUN, "--data", "mixed-paints", "--device", "cuda", *more], out, capsys)
        assert "torch finds no GPU: choose auto or cpu" in line


def test_unknown_weights(photos: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(
        [*RUN, "--data", str(photos), "--model", "ViT-B-32", "--pretrained", "laion3b"], out, capsys
    )
    assert "ViT-B-32 has no weights 'laion3b'. It takes a tag (laion2b" in line


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_truncated_and_foreign_weights(
    suffix: str, photos: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    path = tmp_path / f"weights{suffix}"
    state = {"conv1.weight": torch.zeros(7, 11)}
    if suffix == ".pt":
        torch.save(state, path)
    else:
        save_file(state, path)
    words = [*RUN, "--data", str(photos), "--model", "ViT-B-32", "--pretrained", str(path)]
    assert "holds weights of another architecture" in refused(words, out, capsys)
    path.write_bytes(path.read_bytes()[:-99])
    assert str(path) in (line := refused(words, out, capsys))
    assert "copy it" in line


def test_truncated_weights_of_the_tiny_clip(
    photos: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (tiny.WEIGHTS, tiny.VOCABULARY):
        if not (tiny.FOLDER / name).is_file():
            pytest.skip(f"the packaged weights are not there yet: {tiny.FOLDER / name}")
        (tmp_path / name).write_bytes((tiny.FOLDER / name).read_bytes())
    weights = tmp_path / tiny.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1009])
    words = [*RUN, "--data", str(photos), "--model", "tiny", "--pretrained", str(tmp_path)]
    line = refused(words, out, capsys)
    assert "is damaged, or not a file of weights" in line


def test_a_role_table_of_other_weights(
    small: Path, small_clip: Clip, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = RoleTable.load(small)
    other = Identity("tiny", "elsewhere", "0" * 64)
    RoleTable(table.source, other, table.attributes, table.heads).save(small)
    words = [*RUN, "--data", str(photos), "--methods", "dear", "--roles", str(small), *SHORT]
    line = refused(words, out, capsys)
    assert "computed from tiny/elsewhere" in line
    assert str(small_clip.identity) in line
    assert "--dear.roles-from-other-weights" in line
    # ... and the way out that the message names works.
    assert main([*words, "--out", str(out), "--dear.roles-from-other-weights"]) == 0
    assert len([*out.glob("*.json")]) == 1


def test_a_damaged_role_table(
    small: Path, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write_text(small.read_text()[:99])
    line = refused([*RUN, "--data", str(photos), "--roles", str(small), *SHORT], out, capsys)
    assert "roles.json is not a role table" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dear.alpha-cls", "1"], "alpha_cls is 1.0: it must be between 0 and 1"),
        (["--dear.first", "13"], "first is 13: it must be from 1 to 12"),
        (["--train.epochs", "0"], "epochs is 0: it must be at least 1"),
        (["--shots", "0"], "shots are [0]: each must be at least 1"),
        (["--shots", "5"], "has 2 images, fewer than 5 shots"),
        (["--mask", "role"], "--mask"),
        (["--seeds", "one"], "--seeds"),
        (["--jobs", "0"], "jobs is 0: it must be from 1 to 1,000"),
        (["--jobs", "2", "--cluster", "local"], "--jobs and --cluster: choose one"),
        (["--gpus", "-1"], "gpus is -1.0"),
        (["--select", "test"], "--select"),
        (["--select", "val"], "no validation images"),
        (["--coop.tokens", "8"], "--coop.tokens applies to coop, which is not run: dear"),
        (["--mmrl++.beta", "0.5"], "--mmrlpp.beta applies to mmrl++, which is not run: dear"),
        (["--methods", "coop"], "--dear.first applies to dear, which is not run: coop"),
        (["--methods", "coop", "--dear.first", "9"], "--dear.first applies to dear, which is not run"),
        (
            ["--methods", "coop", "--role-variant", "shuffled"],
            "--role-variant applies to dear or dear+, which",
        ),
        (["--promptsrc.text-weight", "-5"], "promptsrc.text_weight is -5.0: it must be at least 0"),
        (["--train.warmup-epochs", "2"], "warmup_epochs is 2 of 2 epochs"),
        (["--train.precision", "16-mixed"], "precision 16-mixed needs a GPU"),
    ],
)
def test_settings_out_of_range(
    words: list[str], message: str, small: Path, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One line for people, save where the option parser tells more (its own message, tested in unit/cli).
    usual = {"--data": str(photos), "--methods": "dear", "--roles": str(small)}
    usual |= dict(zip(SHORT[::2], SHORT[1::2], strict=True))
    common = [word for name, value in usual.items() if name not in words for word in (name, value)]
    code = main([*RUN, *common, *words, "--out", str(out)])
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert not out.exists() or [*out.iterdir()] == []


def test_a_method_that_does_not_fit_stops_all_before_the_first_run(
    small: Path, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*RUN, "--data", str(photos), "--methods", "zero-shot,coop", "--roles", str(small)]
    line = refused([*words, "--shots", "2", "--coop.tokens", "100"], out, capsys)
    assert "100 context tokens do not fit" in line
    line = refused([*words, "--shots", "2", "--coop.class-specific"], out, capsys)
    assert "coop with these settings cannot score classes it was not trained on" in line


def test_the_error_as_json(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--methods", "deer", "--json", "--out", str(out)]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "UnknownNameError"


def test_a_place_that_cannot_be_written(
    small: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    words = [*RUN, "--data", str(photos), "--roles", str(small), *SHORT]
    for place in (tmp_path / "file", tmp_path / "file" / "runs"):
        assert main([*words, "--out", str(place)]) == 2
        printed = capsys.readouterr()
        assert f"dear: error: cannot write to {place}: " in printed.err
        assert printed.err.rstrip().endswith("Choose another place with --out.")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("during", ["training", "test", "the write"])
def test_ctrl_c(
    during: str,
    small: Path,
    photos: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    with monkeypatch.context() as patch:
        if during == "the write":
            patch.setattr(records.os, "fsync", stop)
        else:
            place = {"training": (trial, "train"), "test": (trial, "predict")}[during]
            patch.setattr(*place, stop)
        assert main(words) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == "dear: interrupted: give the same command to continue"
    assert "Traceback" not in printed.err
    assert {path.name for path in out.iterdir()} <= {"unfinished"}
    assert main(words) == 0  # and the same command does it all
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".json", ".npz"}
    assert len([*out.glob("*.json")]) == 1
    assert "Photos" in capsys.readouterr().out


def test_nan_in_training(
    small: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dear.methods.dear.method import Dear

    loss = Dear.loss
    monkeypatch.setattr(
        Dear, "loss", lambda self, *args: {n: v * float("nan") for n, v in loss(self, *args).items()}
    )
    line = refused(
        [*RUN, "--data", str(photos), "--methods", "dear", "--roles", str(small), *SHORT], out, capsys
    )
    assert "training diverged at step 1" in line
    assert "lower --train.lr" in line


@pytest.mark.parametrize("protocol", ["few-shot", "ablation", "cross-dataset", "domain-generalization"])
def test_every_protocol_refuses_an_unknown_data_set(
    protocol: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Did you mean 'album-stickers'?" in refused(
        ["run", protocol, "--data", "far-stikers"], out, capsys
    )
