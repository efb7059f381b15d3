"""Recipes: what they say is what is run, and what they say wrongly is told with its name."""

import os
from pathlib import Path

import pytest

from dear.errors import DataError, DearError, OutputError, SettingsError
from dear.evaluation.ablations import ablation_plans, ablations
from dear.evaluation.experiment import data_names
from dear.evaluation.launch.claims import LOCK, MARK, claimed, require_distinct_folders
from dear.evaluation.plan import Plan
from dear.evaluation.recipe import RecipeError, load_recipe, load_recipes, restrict
from dear.methods.dear import DearSettings
from dear.methods.registry import METHODS

RECIPES = Path(__file__).parents[3] / "recipes"
GOOD = """
protocol: few-shot
out: runs/x
data: [mixed-paints, stamped-tiles]
methods:
  - zero-shot
  - {method: dear, label: soft, settings: {beta: 0.5}}
shots: [1, 2]
seeds: [3, 5]
train: {epochs: 7, lr: 1e-2}
"""


def written(tmp_path: Path, text: str, name: str = "one.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_what_it_says_is_what_is_run(tmp_path: Path) -> None:
    experiment = load_recipe(written(tmp_path, GOOD))
    assert (experiment.train.epochs, experiment.train.lr) == (7, 0.01)
    soft = Plan("dear", settings=DearSettings(beta=0.5), label="soft")
    assert experiment.plans == (Plan("zero-shot"), soft)
    runs = experiment.runs()
    # Two data sets, two seeds: zero-shot once (0 shots), DeAR with 1 and with 2 shots.
    assert len(runs) == 2 * 2 * 3
    assert [(r.plan.method, r.shots) for r in runs[:3]] == [("zero-shot", 0), ("dear", 1), ("dear", 2)]
    assert [r.dataset for r in runs] == ["mixed-paints"] * 6 + ["stamped-tiles"] * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "sheds: 1\n", r"one\.yaml: unknown key 'sheds'\. Did you mean 'seeds'\?"),
        (GOOD.replace("beta", "betta"), r"settings has the unknown key 'betta' \(did you mean 'beta'"),
        (GOOD.replace("label", "labell"), r"has the unknown key 'labell' \(did you mean 'label'"),
        (GOOD.replace("epochs", "epoch"), r"its train has the unknown key 'epoch' \(did you mean 'epochs'"),
        (GOOD.replace("few-shot", "[a]"), "its protocol is .'a'.: it must be text"),
        (GOOD.replace("few-shot", "{a: b}"), "its protocol is .'a': 'b'.: it must be text"),
        (GOOD.replace("out: runs/x\n", ""), "it lacks the key 'out'"),
        (GOOD.replace("mixed-paints", '"~no-such-user/x"'), "the key 'data' is '~no-such-user/x': no user"),
        (GOOD + "model: ~no-such-user/x\n", "the key 'model' is '~no-such-user/x': no user"),
        (GOOD + "dataset: {workers: 1000000}\n", "workers is 1000000: it must be from 0 to 256"),
        (GOOD + "roles: [a]\n", "its roles is .'a'.: it must be a path or null"),
        (GOOD + "select: [last]\n", "its select is .'last'.: it must be one of last, val"),
        (GOOD.replace("few-shot", "fewshot"), "unknown protocol 'fewshot'. Did you mean 'few-shot'"),
        (GOOD.replace("method: dear", "method: deer"), "unknown method 'deer'. Did you mean 'dear'"),
        (GOOD.replace("beta: 0.5", "beta: much"), "beta is 'much': it must be a number"),
        (GOOD.replace("beta: 0.5", "beta: 1.5"), "beta is 1.5"),
        (GOOD.replace("[3, 5]", "[3, five]"), r"its seeds\[1\] is 'five': it must be a whole number"),
        (GOOD.replace("[1, 2]", "[0]"), "shots are"),
        (GOOD.replace("[3, 5]", "[]"), "no seed"),
        (GOOD.replace("[mixed-paints, stamped-tiles]", "[]"), "no data set"),
        (GOOD.replace("protocol: few-shot", ""), "'protocol' is missing"),
        (GOOD.replace("few-shot", "cross-dataset"), "cross-dataset takes a single number of shots"),
        (GOOD + "source: source\n", "'source' does not apply to the protocol few-shot"),
        (GOOD + "of: mask\n", "'of' does not apply to the protocol few-shot"),
        (GOOD.replace("soft", "CE"), "the label 'CE' is that of an ablation row"),
        (GOOD.replace("label: soft", "label: 5"), "label is 5: it must be text"),
        (GOOD.replace("method: dear", "method: null"), "method is None: it must be text"),
        (GOOD.replace("method: dear", "method: [dear]"), "method is .'dear'.: it must be text"),
        (GOOD.replace("label: soft", "quantile: x"), "quantile is 'x': it must be a number"),
        (GOOD.replace("label: soft", "attributes: 2.5"), "attributes is 2.5: it must be a whole number"),
        (GOOD.replace("label: soft", "attributes: '5'"), "attributes is '5': it must be a whole number"),
        (GOOD.replace("label: soft", "role_variant: soft"), "role_variant is .soft.: it must be one"),
        (GOOD.replace("- zero-shot", "- {method: coop, role_variant: shuffled}"), "coop has no head roles"),
        (GOOD.replace("- zero-shot", "- zero-shut"), "unknown method 'zero-shut'"),
        (GOOD.replace("- zero-shot", "- {method: dear, label: soft}"), r"2 items .* dear \(soft\)"),
        (GOOD.replace("beta: 0.5", "fusion_loss: foo"), "fusion_loss is 'foo': it must be one of linear"),
        (GOOD.replace("beta: 0.5", "beta: .nan"), "beta is nan: it must be a number"),
        (GOOD.replace("beta: 0.5", "first: true"), "first is True: it must be a whole number"),
        (GOOD.replace("beta: 0.5", "5: 1"), r"its methods\[1\]\.settings has the unknown key 5"),
        (GOOD.replace("epochs: 7", "optimizer: foo"), "optimizer is 'foo': it must be one of adamw, sgd"),
        (GOOD.replace("epochs: 7", "precision: foo"), "precision is 'foo': it must be one of auto"),
        (GOOD.replace("epochs: 7", "view_cache_type: foo"), "view_cache_type is 'foo'"),
        (GOOD.replace("epochs: 7", "view_seed: x"), "view_seed is 'x': it must be a whole number"),
        (GOOD.replace("epochs: 7", "view_seed: 1, view_cache: .inf"), "view_cache is inf: it must be a num"),
        (GOOD + "dataset: {sampling: foo}\n", "sampling is 'foo': it must be one of dear, coop"),
        (GOOD + "dataset: {broken: foo}\n", "broken is 'foo': it must be one of stop, skip"),
        (GOOD + "dataset: {root: 5}\n", r"its dataset\.root is 5: it must be a path"),
        (GOOD + "dataset: {template: 5}\n", r"its dataset\.template is 5: it must be text"),
        (GOOD + "model: ''\n", "name of the model or of its weights is empty"),
        (GOOD + "pretrained: [a]\n", "its pretrained is .'a'.: it must be text"),
        (GOOD + "roles: 5\n", "its roles is 5: it must be a path"),
        (GOOD.replace("few-shot", "cross-dataset") + "source: 5\n", "source is 5: it must be text"),
        (GOOD.replace("runs/x", "''"), "its out is '': it must be a path"),
        (GOOD.replace("runs/x", "null"), "its out is None: it must be a path"),
        (GOOD.replace("mixed-paints", "''"), "a data set's name is empty"),
        (GOOD.replace("mixed-paints", "2020-99-99"), "not readable YAML: month must be in 1..12"),
        (GOOD.replace("[3, 5]", "[3, 99999999999999999999]"), "is 99999999999999999999: it must be"),
        ("protocol: cross-dataset\nout: x\nsource: tags\ndata: [tags]\n", "is both the source and a target"),
        ("protocol: ablation\nout: x\nof: 5\n", r"its of\[0\] is 5: it must be text"),
        ("protocol: ablation\nout: x\nof: [[mask]]\n", r"its of\[0\] is .'mask'.: it must be text"),
        ("protocol: ablation\nout: x\nof: mask\nwithout: null\n", r"without\[0\] is None: it must be text"),
        ("protocol: ablation\nout: x\n", "it lacks the key 'of'"),
        ("protocol: ablation\nout: x\nof: masks\n", "unknown ablation 'masks'. Did you mean 'mask'"),
        ("protocol: ablation\nout: x\nof: attributes\nwithout: [K = 8]\n", "unknown row 'K = 8'"),
        (GOOD + "train: {batch: 3}\n", "the key 'train' appears twice"),
        (GOOD.replace("beta: 0.5", "beta: 0.5, beta: 1"), "the key 'beta' appears twice"),
        (GOOD.replace("beta: 0.5", "lambda_reg: -1"), r"dear\.lambda_reg is -1.0: it must be at least 0"),
        (GOOD.replace("- zero-shot", "- mmrlpp"), r"mmrlpp is the prefix of options of the method mmrl\+\+"),
        (GOOD + "? [a, b]\n: 1\n", "not readable YAML: .*unhashable key"),
        ("[1, 2]", "contains no keys"),
        ("a: [", "not readable YAML"),
    ],
)  # fmt: skip
def test_a_recipe_that_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def plans(tmp_path: Path, methods: str) -> tuple[Plan, ...]:
    return load_recipe(written(tmp_path, f"protocol: few-shot\nout: x\nmethods: {methods}\n")).plans


def test_all_is_every_method_that_is_not_named_beside_it(tmp_path: Path) -> None:
    every = tuple(map(Plan, METHODS))
    assert plans(tmp_path, "all") == plans(tmp_path, "[all]") == plans(tmp_path, "[maple, all]") == every
    soft, hard = (Plan("dear", settings=DearSettings(beta=beta), label=f"{beta}") for beta in (0.5, 1.0))
    items = ["{method: dear, label: '0.5', settings: {beta: 0.5}}", "{method: coop, label: x}", "all"]
    items.append("{method: dear, label: '1.0', settings: {beta: 1}}")
    named = {"coop": [Plan("coop", label="x")], "dear": [soft, hard]}
    want = tuple(plan for name in METHODS for plan in named.get(name, [Plan(name)]))
    assert plans(tmp_path, f"[{', '.join(items)}]") == want
    with pytest.raises(RecipeError, match="unknown method 'coopp'"):
        plans(tmp_path, "[all, coopp]")
    with pytest.raises(RecipeError, match="unknown method 'all'"):
        plans(tmp_path, "[{method: all, label: x}]")


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no recipe"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="contains no recipe"):
        load_recipes(tmp_path)


def test_part_of_a_recipe(tmp_path: Path) -> None:
    one = load_recipe(written(tmp_path, GOOD))
    two = load_recipe(written(tmp_path, GOOD.replace("zero-shot", "coop"), "two.yaml"))
    (part,) = restrict([one], data=["stamped-tiles"], methods=["dear"], seeds=[7])
    assert (part.data, part.plans, part.seeds) == (("stamped-tiles",), one.plans[1:], (7,))
    assert load_recipe(tmp_path / "one.yaml", tmp_path).out == tmp_path / "x"
    assert restrict([one, two]) == restrict([one, two], methods=["all"]) == [one, two]
    with pytest.raises(
        DataError, match="no recipe to run has the data set 'other': available are mixed-paints, s"
    ):
        restrict([one, two], data=["stamped-tiles", "other"])
    with pytest.raises(
        DataError, match="no recipe to run has the method 'maple': available are zero-shot, dear"
    ):
        restrict([one], methods=["dear", "maple"])
    with pytest.raises(DataError, match="the recipe two has none of the methods zero-shot: it has coop, dea"):
        restrict([one, two], methods=["zero-shot"])


def test_two_recipes_writing_to_one_place(tmp_path: Path) -> None:
    one, two = (load_recipe(written(tmp_path, GOOD, name), tmp_path) for name in ("a.yaml", "b.yaml"))
    with pytest.raises(OutputError, match="a and b both write to"):
        require_distinct_folders([one, two])
    with claimed(one), pytest.raises(OutputError, match="another process is writing"), claimed(one):
        pass
    with claimed(one):  # the same recipe goes on
        pass
    with pytest.raises(OutputError, match="holds the runs of the recipe 'a', not of b"), claimed(two):
        pass
    assert not (tmp_path / "x" / LOCK).exists()


def test_a_recipe_that_was_killed_while_it_wrote_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = load_recipe(written(tmp_path, GOOD), tmp_path)

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match=r"cannot write .*\.recipe: .*No space left"), claimed(one):
            pass
    assert [*(tmp_path / "x").iterdir()] == []
    with claimed(one):
        assert (tmp_path / "x" / MARK).read_text().strip() == one.about["recipe"]


def test_a_lock_that_its_owner_has_just_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opened it before and locks it after that would not keep a third one out."""
    import fcntl

    one = load_recipe(written(tmp_path, GOOD), tmp_path)
    lock, flock = tmp_path / "x" / LOCK, fcntl.flock

    def late(file: int, how: int) -> None:
        lock.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(OutputError, match="another process is writing"), claimed(one):
        pass


@pytest.mark.parametrize(
    "path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_packaged_recipes_can_be_read(path: Path) -> None:
    experiment = load_recipe(path)
    assert experiment.runs()
    assert experiment.out == Path("runs", path.parent.name, path.stem)
    if path.parent.name in ("methods", "study"):
        return
    other = RECIPES / ("world" if path.parent.name == "paper" else "paper") / path.name
    assert load_recipe(other).protocol.name == experiment.protocol.name


def test_an_ablation_changes_one_thing_each() -> None:
    assert set(ablations()) == {
        "mask",
        "mask-form",
        "loss",
        "inference",
        "quantile",
        "attributes",
        "beta",
        "first",
    }
    plans = ablation_plans(ablations(), DearSettings(tokens=3), without=["K = 7"])
    assert len(plans) == len(set(plans)) == 1 + 3 + 1 + 2 + 4 + 1 + 5 + 3
    assert all(plan.settings is None or plan.settings.tokens == 3 for plan in plans)
    labels = [plan.variant for plan in plans]
    assert len(set(labels)) == len(labels)
    rows = {row.label for one in ablations().values() for row in one.rows} - {"K = 7"}
    assert set(labels) == rows  # how the report finds a row's runs
    ce = next(plan for plan in plans if plan.variant == "CE")
    assert (ce.settings.lambda_reg, ce.settings.lambda_fusion, ce.settings.beta) == (0, 0, 0.9)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("beta", DearSettings(beta=0.5)),
        ("beta", DearSettings(beta=0.9)),  # the default
        ("first", DearSettings(first=10)),
        ("loss", DearSettings(lambda_fusion=0.1)),
    ],
)
def test_no_setting_that_the_ablation_varies(name: str, settings: DearSettings) -> None:
    """The row of DeAR as it is would show the runs of another one."""
    with pytest.raises(SettingsError, match=f"but the ablation {name} varies it"):
        ablation_plans(["mask", name], settings)
    assert ablation_plans(["mask"], settings)[-1].settings == settings


def test_an_ablation_and_a_row_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of 262 kB took 54 s: the rows were made anew for each alias."""
    monkeypatch.setattr("dear.evaluation.ablations._plan", None)  # no row is made
    for argument, kind, name in (("names", "ablation", "beta"), ("without", "row", "K = 7")):
        for names, match in (
            ([name, name], f"{name}' is named 2 times"),
            ([name, "x"], f"unknown {kind} 'x'"),
        ):
            with pytest.raises(DearError, match=match):
                ablation_plans(**({"names": ["mask"]} | {argument: names}))


def test_errors_can_be_mended() -> None:
    assert issubclass(RecipeError, DearError)


def test_a_long_value_is_shortened_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(f"protocol: base-to-novel\nout: runs\nseeds: {[[{}] * 2_000]}\n")
    with pytest.raises(DearError, match=r"its seeds\[0\] is \[") as caught:
        load_recipe(path)
    assert len(str(caught.value)) < 300


def test_sets_of_tasks_by_one_name() -> None:
    tasks = data_names(["world"])
    assert len(tasks) == 12
    assert "mixed-paints" in tasks
    assert data_names(["street-signs", "world", "photos"]) == (
        "street-signs",
        *(name for name in tasks if name != "street-signs"),
        "photos",
    )
    large = data_names(["world-large"])
    assert len(large) == 4
    assert not {*large} & {*tasks}
    assert data_names(["world", "world-large"]) == tasks + large


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("data: [mixed-paints, album-stickers]", ("tiny", None)),
        ("data: [./mixed-paints]", ("ViT-B-16", "laion2b_s34b_b88k")),
        ("data: [mixed-paints, photos]", ("ViT-B-16", "laion2b_s34b_b88k")),
        ("data: [photos]\npretrained: mine.pt", ("ViT-B-16", "mine.pt")),
        ("data: [photos]\nmodel: tiny", ("tiny", None)),
    ],
)
def test_the_backbone_follows_the_data(lines: str, wanted: tuple[str, str | None], tmp_path: Path) -> None:
    one = load_recipe(written(tmp_path, f"protocol: few-shot\nout: x\n{lines}\n"))
    assert one.backbone == wanted


def test_the_source_of_a_transfer_counts_too(tmp_path: Path) -> None:
    text = "protocol: cross-dataset\nout: x\ndata: [mixed-paints]\nsource: {}\n"
    sources = {name: load_recipe(written(tmp_path, text.format(name))) for name in ("source", "ImageNet")}
    assert {name: one.backbone.model for name, one in sources.items()} == {
        "source": "tiny", "ImageNet": "ViT-B-16",
    }  # fmt: skip


def test_numbers_beyond_use(tmp_path: Path) -> None:
    """An integer of 309 digits is no fraction."""
    with pytest.raises(RecipeError, match=r"its train\.lr is 10+\.\.\.0+: it must be a number"):
        load_recipe(written(tmp_path, GOOD.replace("1e-2", f"1{'0' * 320}")))


def test_a_data_set_has_many_names(tmp_path: Path) -> None:
    """It was loaded for each, which the 500 of a recipe made the product of two limits."""
    (tmp_path / "photos").mkdir()
    names = [f"{tmp_path}/{'./' * number}photos" for number in range(9)]
    names += [f"hf:{name}" for name in names]
    assert data_names([*names, "photos", "mixed-paints"]) == (names[0], names[9], "photos", "mixed-paints")


def test_labels_differ_in_names_of_files(tmp_path: Path) -> None:
    """The record of one was read as that of the other, and a row was missing."""
    two = GOOD.replace("  - zero-shot\n", "  - {method: dear, label: sóft, settings: {beta: 0.6}}\n")
    assert len(load_recipe(written(tmp_path, two)).plans) == 2
    path = written(tmp_path, two.replace("sóft", '"soft+"'))
    with pytest.raises(RecipeError, match=r"the labels 'soft\+' and 'soft' of dear are the same in names of"):
        load_recipe(path)
