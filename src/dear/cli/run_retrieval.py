"""`dear run retrieval`: attribute-conditioned retrieval on a world task, as a record for the report."""

import hashlib
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.cli.output import table
from dear.methods.dear.settings import DearSettings
from dear.training.settings import TrainSettings

TASK = "cluttered-cards"


@dataclass(frozen=True)
class Retrieved:
    """Precision at 10 (fraction) of each feature (down) for each factor, mean over the runs, and the records.

    Attributes:
        chance: The precision of neighbours drawn at random.
    """

    precision: dict[str, dict[str, float]]
    chance: dict[str, float]
    records: list[Path]


def command(
    *,
    task: list[str] | None = None,
    pretrained: str | None = None,
    roles: Path | None = None,
    seeds: list[int] | None = None,
    shots: int = 16,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dear: DearSettings = DearSettings(),  # noqa: B008 (frozen, and its fields become options)
    train: TrainSettings = TrainSettings(),  # noqa: B008
    out: Path = Path("runs/retrieval"),
) -> Retrieved:
    """Train DeAR on the base classes of world tasks, then retrieve among their test images by each feature.

    Leaves a record a run; `dear report` shows the first as panels and the mean of all as a table. It is
    made again each time.

    Args:
        task: Tasks of the Attribute World, where the factors of every image are known; cluttered-cards if not
            given, all of them with "world".
        pretrained: Weights of the tiny CLIP: a folder of `dear pretrain`, or those of the package.
        roles: Role table of these weights: a file (JSON), or discovered, ground-truth or published. The first
            of these that the package has for the weights, if not given.
        seeds: Seeds of the few-shot pick, the order, the views and the initial parameters. 1 if not given.
        shots: Training images a class.
        device: Where to compute; auto takes the GPU if there is one.
        dear: Settings of DeAR.
        train: Settings of training.
        out: Folder of the records.
    """
    from dear.backbone.load import load_clip
    from dear.data.loading import load_dataset
    from dear.data.seeds import checked_seed
    from dear.data.world.tasks import downstream_names, load_task
    from dear.evaluation.base_to_novel import adapt_on_base
    from dear.evaluation.plan import Plan
    from dear.evaluation.records import environment, make_folder
    from dear.evaluation.run_context import RunContext
    from dear.evaluation.schema import SCHEMA
    from dear.report.retrieval import averaged
    from dear.retrieval.world import world_retrieval
    from dear.roles.packaged import role_table
    from dear.writing.files import write_json

    names = [one for name in task or [TASK] for one in (downstream_names() if name == "world" else [name])]
    chosen = {name: load_task(name) for name in names}
    numbers = [checked_seed(seed) for seed in seeds or [1]]
    make_folder(out)
    clip = load_clip("tiny", pretrained, device=device)
    table_of_roles = role_table(clip, roles)
    told = table_of_roles.to_json()
    context = RunContext(clip, table_of_roles, train)
    plan = Plan("dear", settings=dear)
    results, records = [], []
    for name, seed in product(chosen, numbers):
        adapted = adapt_on_base(context, load_dataset(name), plan, seed=seed, shots=shots)
        images = chosen[name].test
        found = world_retrieval(adapted.method, images)
        facts = [name, images.identity, clip.identity.sha256, seed, shots, asdict(dear), asdict(train), told]
        key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        path = out / f"retrieval-{name}-seed{seed}-{key[:8]}.json"
        record = {
            "schema": SCHEMA,
            "protocol": "retrieval",
            "key": key,
            "method": "dear",
            "variant": None,
            "settings": {**asdict(dear), "train": asdict(train)},
            "dataset": {"name": name, "title": chosen[name].title, "identity": images.identity},
            "weights": asdict(clip.identity),
            "roles": {"source": table_of_roles.source, "table": told},
            "seed": seed,
            "shots": shots,
            "results": found,
            "environment": environment(),
        }
        write_json(path, record)
        results.append(found)
        records.append(path)
    mean = averaged(results)
    return Retrieved(mean["precision"], mean["chance"], records)


def render(result: Retrieved, console: Console) -> None:
    """Show the precision and where the record is."""
    factors = list(result.chance)
    shown = result.precision | {"(chance)": result.chance}
    rows = [(feature, *(100 * row[f] for f in factors)) for feature, row in shown.items()]
    console.print(table("Neighbours that share the factor, percent", ["feature", *factors], rows))
    many = len(result.records) > 1
    console.print(f"record{'s' * many}: {', '.join(map(str, result.records))}", markup=False)
