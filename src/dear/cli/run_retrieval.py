"""`dear run retrieval`: attribute-conditioned retrieval on a world task, as a record for the report."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.cli.output import table
from dear.training.settings import TrainSettings


@dataclass(frozen=True)
class Retrieved:
    """Precision at 10 (fraction) of each feature (down) for each factor, and the record.

    Attributes:
        chance: The precision of neighbours drawn at random.
    """

    precision: dict[str, dict[str, float]]
    chance: dict[str, float]
    record: Path


def command(
    *,
    task: str = "cluttered-cards",
    pretrained: str | None = None,
    roles: Path | None = None,
    seed: int = 1,
    shots: int = 16,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    train: TrainSettings = TrainSettings(),  # noqa: B008 (frozen, and its fields become options)
    out: Path = Path("runs/retrieval"),
) -> Retrieved:
    """Train DeAR on the base classes of a world task, then retrieve among its test images by each feature.

    Leaves a record that `dear report` shows as panels; it is made again each time.

    Args:
        task: A task of the Attribute World, where the factors of every image are known.
        pretrained: Weights of the tiny CLIP: a folder of `dear pretrain`, or those of the package.
        roles: Role table of these weights: a file (JSON), or discovered, ground-truth or published. The first
            of these that the package has for the weights, if not given.
        seed: Seed of the few-shot pick, the order, the views and the initial parameters.
        shots: Training images a class.
        device: Where to compute; auto takes the GPU if there is one.
        train: Settings of training.
        out: Folder of the record.
    """
    from dear.backbone.load import load_clip
    from dear.data.dataset import load_dataset
    from dear.data.files import write_json
    from dear.data.seeds import checked_seed
    from dear.data.world.tasks import load_task
    from dear.evaluation.base_to_novel import adapt_on_base
    from dear.evaluation.bench import Bench
    from dear.evaluation.plan import Plan
    from dear.evaluation.records import environment, make_folder
    from dear.evaluation.schema import SCHEMA
    from dear.retrieval.world import world_retrieval
    from dear.roles.packaged import role_table

    chosen, seed = load_task(task), checked_seed(seed)
    make_folder(out)
    clip = load_clip("tiny", pretrained, device=device)
    table_of_roles = role_table(clip, roles)
    bench = Bench(clip, table_of_roles, train)
    adapted = adapt_on_base(bench, load_dataset(task), Plan("dear"), seed=seed, shots=shots)
    found = world_retrieval(adapted.method, chosen.test)
    told = table_of_roles.to_json()
    facts = [task, chosen.test.identity, clip.identity.sha256, seed, shots, asdict(train), told]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    path = out / f"retrieval-{task}-seed{seed}-{key[:8]}.json"
    record = {
        "schema": SCHEMA,
        "protocol": "retrieval",
        "key": key,
        "method": "dear",
        "variant": None,
        "settings": {"method": {}, "train": asdict(train)},
        "dataset": {"name": task, "title": chosen.title, "identity": chosen.test.identity},
        "weights": asdict(clip.identity),
        "roles": {"source": table_of_roles.source, "table": told},
        "seed": seed,
        "shots": shots,
        "results": found,
        "environment": environment(),
    }
    write_json(path, record)
    return Retrieved(found["precision"], found["chance"], path)


def render(result: Retrieved, console: Console) -> None:
    """Show the precision and where the record is."""
    factors = list(result.chance)
    shown = result.precision | {"(chance)": result.chance}
    rows = [(feature, *(100 * row[f] for f in factors)) for feature, row in shown.items()]
    console.print(table("Neighbours that share the factor, percent", ["feature", *factors], rows))
    console.print(f"record: {result.record}", markup=False)
