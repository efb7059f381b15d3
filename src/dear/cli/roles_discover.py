"""`dear roles discover` and `dear roles assign`: a role for every attention head."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Group, Parameter

from dear.cli.options import Backbone
from dear.cli.parsing import Flat
from dear.cli.roles import render, write_table
from dear.errors import SettingsError
from dear.reading.typed import PositiveInt, check_value
from dear.roles.settings import Preset, RoleOverrides, RoleSettings, with_preset

if TYPE_CHECKING:
    from dear.data.dataset import Images

__all__ = ["command_assign", "command_discover", "render"]


@Parameter(group=Group("From phrases to roles", sort_key=60))
@dataclass(frozen=True)
class Naming:
    """How phrases become roles.

    Attributes:
        preset: Settings by name: default, or paper, which follows the words of the paper's text: clusters of
            the heads' phrases alone, in the sentence embeddings as they are, and entropies over the core
            attributes. The paper does not print HDBSCAN's settings. Those of the preset, min_cluster_size 5
            and min_samples 2, give the paper's number of clusters, 12, for the packaged table textspan.
        settings: Settings of the step from phrases to roles, which replace those of the preset.
        out: File to write the role table to.
        html: File to write the page of the table to. By default beside the table.
    """

    preset: Preset = "default"
    settings: RoleOverrides = field(default_factory=dict)
    out: Path = Path("roles.json")
    html: Path | None = None

    def role_settings(self) -> RoleSettings:
        """The settings of the preset, with those that the user sets. Raises SettingsError."""
        return with_preset(self.preset, self.settings)

    def files(self, *others: Path | None) -> tuple[Path, Path]:
        """The files of the table and its page. Raises OutputError unless they and others can be written."""
        from dear.writing import require_writable

        page = self.html or self.out.with_suffix(".html")
        for path in filter(None, (self.out, page, *others)):
            require_writable(path)
        return self.out, page


def command_discover(
    *,
    backbone: Flat[Backbone] = Backbone(),
    data: str | None = None,
    images: int = 10_000,
    phrases: str | None = None,
    layers: str | None = None,
    rank: int = 80,
    naming: Flat[Naming] = Naming(),
    images_a_head: int = 10,
    spans: Path | None = None,
) -> dict[str, Any]:
    """Find the role of every attention head of a CLIP's last layers.

    The image embedding is decomposed over heads. TEXTSPAN finds the phrases that describe each head, clusters
    of phrases are concepts, and the entropy of a head's concepts gives its role. The same input gives the
    same table. A page shows the table, how much of the embedding the heads of each layer carry, and which
    images a head responds to.

    Args:
        data: Images, of which labels are not used: a folder (with or without folders of classes), a CSV or
            JSONL file, a zip, or the name of a benchmark or of a task. Training images are taken. Without
            this option, the tiny CLIP is analyzed on scenes of the Attribute World.
        images: How many images to use, evenly spread over the data set.
        phrases: Phrases to choose from: general, world, a text file with one phrase per line, or a CSV file
            with the columns phrase and concept, whose concepts are then taken as they are, without
            clusters. By default world for the tiny CLIP, else general.
        layers: Layers to analyze, counted from 1, such as 9-12. By default the last third of the tower.
        rank: Principal dimensions of a head's contributions that are used (the published r). If a head has
            fewer, all of them are used.
        images_a_head: How many images of each head the page shows: the images with the largest contribution
            along its first phrase, and as many with the smallest. 0 shows none; the most is 50.
        spans: File to write the phrases of each head to, in TEXTSPAN's public text format.
    """
    from dear.backbone.names import TINY
    from dear.data.names import check_name

    backbone.check()
    if data is not None:
        check_name(data)
    from dear.cli.progress import StepProgress  # loads torch: what can be refused without it is
    from dear.data.fewshot import Subset
    from dear.data.loading import deferred_warnings, load_images, of_world
    from dear.roles.decompose import evenly_spaced
    from dear.roles.discover import discover
    from dear.roles.inspection import inspect_heads
    from dear.roles.phrases import GENERAL, WORLD, load_pool
    from dear.roles.pictures import ImagesOfHead
    from dear.roles.textspan_format import layer_range, write_textspan
    from dear.world.render import WorldScenes

    check_value("images", images, PositiveInt)
    check_value("images_a_head", images_a_head, ImagesOfHead)
    settings = naming.role_settings()
    out, page = naming.files(spans)
    world = data is None or of_world([data])
    model = backbone.name(world=world).model
    pool = load_pool(phrases or (WORLD if model == TINY else GENERAL))
    layer_numbers = layer_range(layers) if layers else None
    if data is None and model != TINY:
        raise SettingsError(f"{model} needs images: give a folder or a data set by name with --data.")
    with deferred_warnings():
        dataset = None if data is None else load_images(data)
        clip = backbone.load(world=world)
    chosen: Images = WorldScenes(images, clip.image_size)
    names = [f"scene {number}" for number in range(images)]
    if dataset is not None:
        chosen = train = Subset(dataset.train, evenly_spaced(len(dataset.train), images))
        names = train.paths or [dataset.classnames[label] for label in train.labels.tolist()]
    with StepProgress() as progress:
        found = list[tuple[Any, Any]]()
        table = discover(
            clip,
            chosen,
            pool,
            layers=layer_numbers,
            rank=rank,
            facts={"data": data or "scenes of the Attribute World"},
            inspect=(lambda parts, span: found.append((parts, span.first))) if images_a_head else None,
            progress=progress,
            settings=settings,
        )
        how: dict[str, Any] = {"a_head": images_a_head, "name": names.__getitem__, "progress": progress}
        inspection = inspect_heads(clip, table, chosen, found=found[0] if found else None, **how)
    if spans is not None:
        write_textspan(spans, {(head.layer, head.head): head.phrases for head in table.heads})
    return write_table(table, out, page, inspection)


def command_assign(
    spans: Path,
    *,
    layers: str | None = None,
    model: str = "unknown",
    pretrained: str = "unknown",
    naming: Flat[Naming] = Naming(),
) -> dict[str, Any]:
    """Assign every head a role from a TEXTSPAN result in the public text format.

    Args:
        spans: The text file: "Layer 8, Head 0" (counted from 0) above each head's phrases.
        layers: Layers to analyze, counted from 1, so that 9-12 are the file's 8 to 11. By default all.
        model: The architecture that the phrases were found in. The table names it, and fits no other.
        pretrained: The weights of that architecture.
    """
    from dear.cli.output import progress_console
    from dear.roles.textspan_format import in_layers, layer_range, read_textspan

    heads = read_textspan(spans)
    from dear.backbone.clip import Identity  # loads torch: what can be refused without it is
    from dear.roles.assign import build_table

    settings = naming.role_settings()
    out, page = naming.files()
    layer_numbers = layer_range(layers) if layers else tuple(sorted({layer for layer, _ in heads}))
    heads = in_layers(heads, layer_numbers)
    with progress_console().status("concepts"):
        table = build_table(
            heads,
            Identity(model, pretrained, ""),
            source=f"assigned from {spans.name}",
            facts={"spans": spans.name, "layers": list(layer_numbers)},
            settings=settings,
        )
    return write_table(table, out, page)
