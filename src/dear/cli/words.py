"""`dear words`: choose the attribute words of prompts among combinations of some words."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from dear.cli.output import progress_console, table
from dear.cli.running import settings_of_methods
from dear.data.settings import DataSettings
from dear.evaluation.word_settings import candidates, check_search, search_settings
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS

if TYPE_CHECKING:
    from dear.evaluation.words import Cost

SHOWN = 10


@dataclass(frozen=True)
class Chosen:
    """The cost of the search and what it found; in a dry run the cost alone.

    Attributes:
        words: The words of the combination with the highest weight.
        weights: All combinations with their weights (fractions), the highest first.
        out: The file that has the words.
    """

    dataset: str
    cost: dict[str, Any]
    words: list[str] | None
    weights: list[dict[str, Any]]
    out: Path | None


def command(
    words: list[str],
    *,
    data: str,
    out: Path = Path("words.json"),
    method: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    shots: int = 16,
    seed: int = 1,
    least: int = 1,
    most: int | None = None,
    epochs: int = 40,
    batch: int = 32,
    lr: float = 0.002,
    weight_lr: float = 0.02,
    text_chunk: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dry_run: bool = False,
    dataset: DataSettings = DataSettings(),  # noqa: B008 (frozen, and its fields become options)
    **settings: MethodSettings,
) -> Chosen:
    """Choose a data set's attribute words, for methods whose prompts have some: ATPrompt's search.

    Every combination of the words learns prompts of its own, all at once, and a weight on validation images;
    the highest weight after the last epoch wins. Only images of the base classes are used, none for
    tests. The cost grows with the number of combinations (31 for 5 words), and is stated before the search.

    Args:
        words: Words to choose among.
        data: A data set: a task's or benchmark's name, a folder, a CSV or JSONL file, or a zip.
        out: JSON file of words by data set, which --atprompt.words reads; other data sets in it are kept.
        method: Method whose prompts the words are for; the only one if not given.
        model: Backbone: an open_clip architecture, or tiny. If not given, ViT-B-16 with laion2b_s34b_b88k
            from the hub; for a task of the Attribute World, tiny.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        shots: Training images per class.
        seed: Seed of the pick, the order, the views and the initial values.
        least: Fewest words of a combination.
        most: Most words of a combination; all if not given.
        epochs: Passes over the training images.
        batch: Images per step.
        lr: Learning rate of the prompts.
        weight_lr: Learning rate of the weights.
        text_chunk: Prompts that go through the text tower at a time, to save memory; 0 for all.
        device: Where to compute; auto uses the GPU if there is one.
        dry_run: Only state the cost.
        dataset: How the data set is read.
        settings: Settings of the method, such as --atprompt.tokens.
    """
    some, training = candidates(words), search_settings(epochs, batch, lr, text_chunk)
    name = method or next(name for name, one in METHODS.items() if one.takes_words)
    sizes = (least, len(some) if most is None else most)
    check_search(name, some, sizes, shots, weight_lr)
    own = settings_of_methods([name], settings).get(name)

    from dear.backbone.choice import check_model, chosen, warn_of_toy
    from dear.data.names import check_name

    check_name(data, dataset)
    check_model(model)
    from dear.backbone.load import load_clip  # loads torch: what can be refused without it is
    from dear.data.loading import load_dataset
    from dear.data.notes import held_notes
    from dear.evaluation.records import make_folder
    from dear.evaluation.words import WordSearch
    from dear.reading.plain import read_json
    from dear.reading.typed import typed
    from dear.writing.files import write_json

    console = progress_console()
    known = typed(read_json(out), dict[str, list[str]], out) if out.exists() else {}
    with held_notes():
        images = load_dataset(data, dataset)
        named = chosen(model, pretrained, world=images.world)
        warn_of_toy(named.model, world=images.world)
        search = WordSearch(
            clip=load_clip(*named, device=device),
            dataset=images,
            method=name,
            settings=own,
            words=some,
            sizes=sizes,
            shots=shots,
            seed=seed,
            training=training,
            weight_lr=weight_lr,
        )
        cost = search.cost()
    console.print(_told(cost), markup=False, soft_wrap=True)
    if dry_run:
        return Chosen(search.dataset.name, vars(cost), None, [], None)

    def tell(epoch: int, weights: list[float]) -> None:
        at = max(range(len(weights)), key=weights.__getitem__)
        console.print(f"epoch {epoch}/{epochs}  {', '.join(search.sets[at])}  {100 * weights[at]:.1f}%")

    make_folder(out.parent)
    found = search.run(tell)
    best = [*found[0].words]
    write_json(out, {**known, search.dataset.name: best})
    return Chosen(search.dataset.name, vars(cost), best, [vars(one) for one in found], out)


def render(result: Chosen, console: Console) -> None:
    """Show the combinations with the highest weights and where the words are."""
    if result.words is None:
        return
    rows = [(", ".join(one["words"]), f"{100 * one['weight']:.2f}") for one in result.weights[:SHOWN]]
    console.print(table(f"Weights on {result.dataset}, percent", ("words", "weight"), rows))
    console.print(
        f"{len(result.weights)} combinations: equal weights would be {100 / len(result.weights):.2f}%. "
        f"The words are in {result.out}.",
        markup=False,
    )


def _told(cost: "Cost") -> str:
    return (
        f"{cost.combinations} combinations x {cost.steps} steps ({cost.epochs} epochs): each step puts "
        f"{cost.prompts} prompts through the text tower with gradients, and again without; about "
        f"{cost.seconds / 60:.1f} minutes (from one timed step, one-time work included)."
    )
