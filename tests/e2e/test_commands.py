"""What people and scripts rely on in every command: exit codes, JSON, options, suggestions, quick help."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from PIL import Image

import dear
from dear.adapters.bundle import Bundle
from dear.backbone.load import load_clip
from dear.cli.main import main
from dear.methods.registry import METHODS

SOURCE = Path(dear.__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
FORKS = """
import contextlib, io, json, os, sys
from dear.cli.main import main

ends = []
for words in json.load(sys.stdin):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(words)
        with os.fdopen(write, "w") as file:
            json.dump([code, output.getvalue(), [*sys.modules]], file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        content = file.read()
    os.waitpid(child, 0)
    assert content, f"{words} ended the process"
    ends.append(json.loads(content))
json.dump(ends, sys.stdout)
"""
HEAVY = {
    "cv2", "fastapi", "httpx", "lightning_fabric", "matplotlib", "open_clip", "pandas", "ray", "scipy",
    "sklearn", "sympy", "timm", "torch._dynamo", "torch.onnx", "torchvision", "transformers",
}  # fmt: skip
OPTIONS = {
    "fit": "--out --method --model --roles --shots --seed --overwrite --device",
    "eval": "--out --split --classes --device",
    "predict": "--out --top --format --classes --add-classes",
    "export": "--out --images",
    "serve": "--port --host --token --index",
    "index build": "--out --features --device",
    "index query": "--text --by --weights --count --sheet",
    "methods": "--methods",
    "run base-to-novel": "--data --methods --shots --seeds --out --dry-run --jobs",
    "run cross-dataset": "--source --data --methods",
    "run domain-generalization": "--source --methods",
    "run few-shot": "--data --methods --shots --seeds",
    "run retrieval": "--data --methods",
    "run ablation": "--of --without --seeds",
    "run recipe": "--data --methods --seeds --out --dry-run",
    "report": "--out --title --weights",
    "roles discover": "--model --data --images --layers --out --html",
    "roles assign": "--layers --attributes --out",
    "roles show": "--variant --seed --out --html",
    "roles compare": "--heads",
    "roles ablate": "--data --by --layers",
    "data list": "--root",
    "data check": "--root --decode",
    "data get": "--root",
    "demo": "--out --tasks --seed",
    "tasks": "--tasks",
    "models": "--names",
    "info": "",
}
"""The commands, each with some of its options."""


class End(NamedTuple):
    """The exit code of a command, its output on both streams, and the modules of its process."""

    code: int
    output: str
    modules: frozenset[str]


def run_each(commands: list[list[str]]) -> list[End]:
    """Run each command line in a fork of one process that has loaded little."""
    process = subprocess.run(
        [sys.executable, "-c", FORKS],
        input=json.dumps(commands), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, check=True,
    )  # fmt: skip
    return [End(code, output, frozenset(modules)) for code, output, modules in json.loads(process.stdout)]


def ask(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> Any:
    """The JSON that a command prints with --json."""
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def options_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The options that a command line gives, as --print-config prints them."""
    assert main([*words, "--print-config"]) == 0
    options = yaml.safe_load(capsys.readouterr().out)
    return {name.replace("-", "_"): value for name, value in options.items()}


@pytest.fixture
def check_does(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets `dear data check` do something else."""
    return lambda act: monkeypatch.setattr("dear.data.check.check_dataset", lambda *_, **__: act())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that has learned nothing, with an image beside it."""
    made = Bundle(
        method="zero-shot",
        settings=METHODS["zero-shot"].settings(),
        model="tiny",
        pretrained=None,
        weights=load_clip("tiny").identity,
        roles=None,
        classes=("red circle", "blue square"),
        templates=("a photo of a {}.",),
        tensors={},
    )
    folder = made.save_pretrained(tmp_path_factory.mktemp("made") / "bundle")
    Image.new("RGB", (64, 64), "red").save(folder.parent / "red.png")
    return folder


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    overview = capsys.readouterr().out
    assert all(word in overview for name in OPTIONS for word in name.split())


def test_a_group_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("run", "data", "roles", "index"):
        assert main([group]) == 0
        listed = capsys.readouterr().out
        assert all(name.split()[1] in listed for name in OPTIONS if name.startswith(f"{group} "))
        assert "predict" not in listed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert dear.__version__ in capsys.readouterr().out


def test_help_names_the_options_and_loads_no_torch() -> None:
    commands = [[], *([*name.split(), "--help"] for name in OPTIONS)]
    names = ["", *(options for options in OPTIONS.values())]
    for words, options, end in zip(commands, names, run_each(commands), strict=True):
        assert end.code == 0, (words, end.output)
        assert all(option in end.output for option in options.split()), (words, end.output)
        assert not {"torch", "numpy", *HEAVY} & end.modules, words


def test_help_has_the_settings_of_the_chosen_method(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["fit", "--method", "maple", "--help"],
        ["run", "few-shot", "--methods=maple,mmrl++", "--help"],
    ):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "--maple.depth" in shown
        assert "--coop.tokens" not in shown
    assert "--mmrlpp.beta" in shown


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        (["inof"], "UnknownNameError", "info"),
        (["data", "chekc"], "UnknownNameError", "check"),
        (["fit", "photos", "--out", "b", "--shoots", "1"], "UsageError", "--shots"),
        (["fit", "photos", "--out", "b", "--select", "vla"], "UsageError", "val"),
        (["fit", "photos", "--out", "b", "--method", "deer"], "UnknownNameError", "dear"),
        (["fit", "a", "--out", "b", "--method", "coop", "--coop.tokns", "4"], "UsageError", "--coop.tokens"),
        (["run", "few-shot", "--data", "mixed-piants"], "UnknownNameError", "mixed-paints"),
        (["fit", "mixed-paints", "--out", "b", "--model", "ViT-B-61"], "UnknownNameError", "ViT-B-16"),
    ],
)  # fmt: skip
def test_a_misspelt_name_suggests_the_nearest(
    words: list[str], kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ask(words, capsys, 2)
    assert {*error} == {"error", "kind"}
    assert error["kind"] == kind
    assert name in error["error"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["fit", "photos"], "--out"),
        (["data", "check"], "NAME"),
        (["data", "check", "a", "b"], "b"),
        (["fit", "photos", "--out", "b", "--shots", "abc"], "--shots"),
        (["fit", "photos", "--out", "b", "--shots", "1.5"], "--shots"),
        (["fit", "photos", "--out", "b", "--shots"], "--shots"),
        (["fit", "photos", "--out", "b", "--train.lr", "nan"], "--train.lr"),
        (["fit", "photos", "--out", "b", "--train", "5"], "--train"),
        (["run", "few-shot", "--dry-run", "true"], "true"),
        (["data", "check", "ol\udce9"], "UTF-8"),
        (["tasks", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["tasks", "--jsno"], "--json"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("dear: error: ")
    assert name in line


ERRORS = [
    (["fit", "nowhere", "--out", "b"], "nowhere"),
    (["fit", "./nowhere", "--out", "b"], "./nowhere"),
    (["run", "few-shot", "--data", "nowhere"], "nowhere"),
    (["run", "recipe", "nowhere.yaml"], "nowhere.yaml"),
    (["predict", "./nowhere", "image.png"], "nowhere"),
    (["predict", "./nowhere", "https://example.org/a.jpg"], "https://example.org/a.jpg"),
    (["predict", "./nowhere", "list.csv"], "list.csv"),
    (["index", "query", "./nowhere", "a striped thing"], "a striped thing"),
    (["eval", "./nowhere", "mixed-paints"], "nowhere"),
    (["export", "./nowhere", "--out", "model.onnx"], "nowhere"),
    (["serve", "./nowhere"], "nowhere"),
    (["index", "build", "./nowhere", "photos"], "nowhere"),
    (["index", "build", "photos", "--features", "heads", "--model", "ViT-C-16"], "ViT-C-16"),
    (["fit", "mixed-paints", "--out", "b", "--model", "ViT-C-16"], "ViT-C-16"),
    (["run", "few-shot", "--data", "mixed-paints", "--model", "ViT-C-16"], "ViT-C-16"),
    (["roles", "discover", "--data", "nowhere"], "nowhere"),
    (["roles", "discover", "--data", "mixed-paints", "--model", "ViT-C-16"], "ViT-C-16"),
    (["roles", "ablate", "--data", "nowhere"], "nowhere"),
    (["roles", "show", "nowhere.json"], "nowhere.json"),
    (["roles", "compare", "published", "nowhere.json"], "nowhere.json"),
    (["roles", "assign", "nowhere.txt"], "nowhere.txt"),
]
"""Command lines with an error in their words, and what the message names."""


def test_an_error_in_the_words_is_told_without_torch(bundle: Path) -> None:
    errors = [*ERRORS, (["predict", str(bundle), "no.png"], "no.png")]
    for (words, name), end in zip(errors, run_each([words for words, _ in errors]), strict=True):
        assert (end.code, name in end.output) == (2, True), (words, end.output)
        assert not {"torch", "numpy"} & end.modules, words


def test_a_prediction_loads_torch_and_little_else(bundle: Path) -> None:
    [end] = run_each([["predict", str(bundle), str(bundle.parent / "red.png")]])
    assert (end.code, "red circle" in end.output) == (0, True), end.output
    assert "torch" in end.modules
    assert not HEAVY & end.modules


def test_what_cannot_be_done_in_part_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "test"):
        for color in ("red", "blue"):
            (tmp_path / part / color).mkdir(parents=True)
            Image.new("RGB", (40, 40), color).save(tmp_path / part / color / "0.png")
    assert main(["data", "check", str(tmp_path)]) == 0
    (tmp_path / "train" / "red" / "1.png").write_bytes(b"no picture")
    found = ask(["data", "check", str(tmp_path)], capsys=_fresh(capsys), code=1)
    assert "1.png" in json.dumps(found["broken"])


def _fresh(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    capsys.readouterr()
    return capsys


def test_the_result_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    info = ask(["info"], capsys)
    assert info["dear"] == dear.__version__
    assert info["packages"]["torch"]
    assert info["devices"][0] == "cpu"
    assert main(["info"]) == 0
    assert dear.__version__ in capsys.readouterr().out


def test_the_error_as_json_and_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "nowhere", "--json"]) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)
    assert error["kind"] == "UnknownNameError"
    assert printed.err == f"dear: error: {error['error']}\n"


def test_a_warning_is_one_line(
    check_does: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> None:
        warnings.warn("no split found", stacklevel=1)
        raise KeyboardInterrupt

    check_does(act)
    main(["data", "check", "photos"])
    assert capsys.readouterr().err.splitlines()[0] == "dear: note: no split found"


def raising(error: BaseException) -> Callable[..., None]:
    def act(*_: object, **__: object) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (KeyboardInterrupt(), 130, "Interrupted"),
        (MemoryError(), 2, "UsageError"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 2, "UsageError"),
        (OSError(errno.ENOSPC, "No space left on device", "out/weights"), 2, "OutputError"),
        (OSError(errno.EROFS, "Read-only file system", "out/weights"), 2, "OutputError"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, "UsageError"),
    ],
)
def test_how_a_command_ends(
    error: BaseException,
    code: int,
    kind: str,
    check_does: Callable[[Callable[[], object]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_does(raising(error))
    assert main(["data", "check", "photos", "--json"]) == code
    printed = capsys.readouterr()
    assert json.loads(printed.out)["kind"] == kind
    assert printed.err.count("\n") == 1
    if named := getattr(error, "filename", None):
        assert named[:20] in printed.err


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(errno.EINVAL, "Invalid argument")])
def test_a_bug_keeps_its_traceback(
    error: Exception, check_does: Callable[[Callable[[], object]], None]
) -> None:
    check_does(raising(error))
    with pytest.raises(type(error)) as caught:
        main(["data", "check", "photos"])
    assert caught.value is error


def test_an_interrupted_fit_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dear.adapters.fit.fit", raising(KeyboardInterrupt()))
    assert main(["fit", "mixed-paints", "--out", "b"]) == 130
    assert "same command" in capsys.readouterr().err


def test_sigterm_clears_up(
    check_does: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    cleared = list[bool]()

    def act() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleared.append(True)

    check_does(act)
    assert ask(["data", "check", "photos"], capsys, 143)["kind"] == "Terminated"
    assert cleared == [True]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_is_left_to_a_program_that_handles_it(
    check_does: Callable[[Callable[[], object]], None],
) -> None:
    before = signal.signal(signal.SIGTERM, raising(KeyboardInterrupt()))
    try:
        check_does(lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert main(["data", "check", "photos"]) == 130
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def start(words: list[str], stdout: Any = subprocess.PIPE, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dear.cli.main", *words],
        stdout=stdout, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | more, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["--help"], ["data", "list", "--json"]])
def test_a_reader_that_goes_away_is_no_error(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = start(words, write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["data", "list"], ["data", "list", "--json"]])
def test_a_full_stdout_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = start(words, full)
    assert done.returncode == 2
    assert done.stderr.startswith("dear: error: ")
    assert done.stderr.count("\n") == 1


def test_names_in_any_bytes_on_stdin_and_in_ascii(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dear predict BUNDLE -` takes names that are not in UTF-8, and prints them, escaped."""
    names = [b"ol\xc3\xa9.png", b"\xff.png"]
    for name in names:
        Image.new("RGB", (64, 64), "red").save(os.path.join(os.fsencode(tmp_path), name), "PNG")
    listed = b"".join(os.path.join(os.fsencode(tmp_path), name) + b"\n" for name in [*names, b"no.png"])
    for words in (["--json"], []):
        stdout = io.TextIOWrapper(io.BytesIO(), "ascii", "strict")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed), "utf-8", "strict"))
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["predict", str(bundle), "-", *words]) == 1
        written = stdout.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
        if words:
            images = [row["image"] for row in json.loads(written)["predictions"]]
            assert images == [str(tmp_path / os.fsdecode(name)) for name in names]
        else:
            assert r"ol\xe9.png" in written
            assert r"\udcff.png" in written
    assert "no.png" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["~no-one/b", "x" * 300])
def test_names_that_no_file_can_have(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", name, "mixed-paints"]) == 2
    assert name[:20] in (line := capsys.readouterr().err)
    assert line.count("\n") == 1


def test_lists_are_written_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ask(["tasks", "--tasks", "tilted-badges,mixed-paints"], capsys)["tasks"]
    assert [task["name"] for task in tasks] == ["tilted-badges", "mixed-paints"]
    predict = ["predict", "bundle", "a,b.png", "-", "c.png", "--classes"]
    for words, classes in (
        (["1,yes,007,null"], ["1", "yes", "007", "null"]),
        (["a b: #1", "--classes", "c,d"], ["a b: #1", "c", "d"]),
        (['"a, b",c'], ["a, b", "c"]),
    ):
        options = options_of([*predict, *words], capsys)
        assert options["classes"] == classes
        assert options["images"] == ["a,b.png", "-", "c.png"]
    options = options_of(["run", "few-shot", "--seeds=1,2", "--dataset.workers", "2"], capsys)
    assert [*options["seeds"]] == [1, 2]


def test_options_of_every_sort(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "fit",
        "--train.lr",
        "1e-3",
        "--no-calibrate",
        "--shots=1",
        "--shots=2",
        "--out",
        "b",
        "--print-config",
        "--",
        "-d",
    ]
    assert main(words) == 0
    options = yaml.safe_load(capsys.readouterr().out)
    assert options["data"] == "-d"
    assert (options["shots"], options["calibrate"], options["overwrite"]) == (2, False, False)
    assert options["train"]["lr"] == 0.001
    assert options_of(["data", "check", "x", "--no-decode"], capsys)["decode"] is False


def test_methods_have_settings_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "base-to-novel", "--methods", "coop,mmrl++,tip-adapter"]
    settings = ["--coop.tokens", "4", "--mmrl++.beta", "0.5", "--mmrlpp.scale=null", "--tip-adapter.tuned"]
    options = options_of([*words, *settings], capsys)
    assert options["coop"] == {"tokens": 4}
    assert options["mmrlpp"] == {"beta": 0.5, "scale": None}
    assert options["tip_adapter"] == {"tuned": True}
    assert main(["fit", "mixed-paints", "--out", "b", "--coop.tokens", "4"]) == 2
    assert "--coop.tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "bundle", "a.png", "--classes", "007,yes,null", "--out", "x.csv"],
        ["run", "few-shot", "--jobs", "2", "--train.lr", "1e-05", "--methods", "dear", "--dear.first", "8"],
        ["fit", "photos", "--out", "b", "--method", "coop", "--coop.tokens", "8"],
    ],
)
def test_printed_options_are_a_file_of_them(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--print-config"]) == 0
    (tmp_path / "options.yaml").write_text(printed := capsys.readouterr().out, encoding="utf-8")
    name = command[:2] if command[0] == "run" else command[:1]
    assert main([*name, "--config", str(tmp_path / "options.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed


def test_options_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(
        "data: photos\nout: b\nshots: 3\ntrain: {epochs: 5, lr: 1e-3}\nmethod: coop\ncoop:\n  tokens: 8\n"
    )
    options = options_of(["fit", "--config", str(file), "--shots", "4", "--train.epochs", "6"], capsys)
    assert (options["data"], options["out"], options["shots"]) == ("photos", "b", 4)
    assert (options["train"]["epochs"], options["train"]["lr"]) == (6, 0.001)
    assert options["coop"] == {"tokens": 8}
    file.write_text("classes: ['007', 'yes', 'a, b']\nadd-classes: null\ntop: 2\n")
    options = options_of(["predict", "bundle", "a.png", "--config", str(file)], capsys)
    assert (options["classes"], options["add_classes"], options["top"]) == (["007", "yes", "a, b"], None, 2)
    options = options_of(["predict", "bundle", "a.png", "--config", str(file), "--classes", "c"], capsys)
    assert options["classes"] == ["c"]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("shoots: 1", "shoots"),
        ("train: {epoch: 1}", "epoch"),
        ("shots: many", "shots"),
        ("- a\n- b\n", "options.yaml"),
        ("shots: [a\nout: {", "options.yaml"),
    ],
)
def test_a_wrong_file_of_options_is_named(
    content: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "options.yaml").write_text(content)
    assert main(["fit", "photos", "--out", "b", "--config", str(tmp_path / "options.yaml")]) == 2
    assert name in (line := capsys.readouterr().err)
    assert line.count("\n") == 1
