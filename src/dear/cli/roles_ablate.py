"""`dear roles ablate`: zero-shot accuracy with heads replaced by their means."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.cli.output import table as rich_table


@dataclass(frozen=True)
class Ablated:
    """Zero-shot accuracies (fractions) on a data set's test images, unablated and with each set ablated."""

    data: str
    images: int
    classes: int
    whole: float
    ablated: dict[str, float]
    heads: dict[str, int]


def command(
    *,
    data: str = "travel-posters",
    model: str | None = None,
    pretrained: str | None = None,
    by: Literal["layer", "head", "role"] = "layer",
    layers: str | None = None,
    heads: str | None = None,
    roles: Path | None = None,
    images: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Ablated:
    """Measure zero-shot accuracy with heads' contributions replaced by their means (mean ablation).

    Args:
        data: A folder of images, a CSV or JSONL file, a zip, a benchmark or a task by name; its test images
            are used.
        model: Backbone: an open_clip architecture, or tiny. If not given, ViT-B-16 with laion2b_s34b_b88k
            from the hub; for a task of the Attribute World, tiny.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        by: What is ablated at a time: a layer, a head, or all heads of a role.
        layers: Layers to ablate in, counted from 1, such as 9-12; the last third of the tower if not given.
        heads: A single set of heads to ablate together instead, as LAYER.HEAD, such as 9.0,10.3.
        roles: Role table, with --by role: a file, or discovered, ground-truth or published.
        images: How many test images to use, evenly spread; all if not given.
        device: Where to compute; auto uses the GPU if there is one.
    """
    from dear.backbone import choice
    from dear.data.names import check_name

    check_name(data)
    choice.check_model(model)
    from dear.backbone.load import load_clip  # loads torch: what can be refused without it is
    from dear.cli.progress import StepProgress
    from dear.data.fewshot import Subset
    from dear.data.loading import load_dataset
    from dear.data.notes import held_notes
    from dear.errors import SettingsError
    from dear.roles.ablation import by_head, by_layer, by_role, head_set, mean_ablation
    from dear.roles.decompose import analysed_layers, spread
    from dear.roles.packaged import role_table
    from dear.roles.textspan_format import layer_range

    if images is not None and images < 1:
        raise SettingsError(f"images is {images}: it must be at least 1.")
    with held_notes():
        dataset = load_dataset(data)
        backbone = choice.backbone_or_default(model, pretrained, world=dataset.world)
        choice.warn_of_toy(backbone.model, world=dataset.world)
        clip = load_clip(*backbone, device=device)
        layer_numbers = analysed_layers(clip, layer_range(layers) if layers else None)
        if heads:
            sets = head_set(heads.split(","))
        elif by == "role":
            table = role_table(clip, roles)
            table.check(clip.identity)
            sets = by_role(table)
        else:
            sets = by_layer(clip, layer_numbers) if by == "layer" else by_head(clip, layer_numbers)
    test = dataset.test if images is None else Subset(dataset.test, spread(len(dataset.test), images))
    text = clip.class_features(dataset.classnames, dataset.templates)
    with StepProgress() as progress:
        accuracies = mean_ablation(clip, test, text, sets, progress=progress)
    counts = {name: len(heads_of_set) for name, heads_of_set in sets.items()}
    return Ablated(
        dataset.name, accuracies.images, len(dataset.classnames), accuracies.whole, accuracies.ablated, counts
    )


def render(result: Ablated, console: Console) -> None:
    """Show accuracies in percent, and points lost."""
    console.print(f"{result.data}: {result.images} test images, {result.classes} classes")
    rows: list[list[object]] = [["nothing", 0, 100 * result.whole, 0.0]]
    rows += [
        [name, result.heads[name], 100 * accuracy, 100 * (result.whole - accuracy)]
        for name, accuracy in result.ablated.items()
    ]
    console.print(rich_table(None, ("mean-ablated", "heads", "zero-shot accuracy (%)", "points lost"), rows))
