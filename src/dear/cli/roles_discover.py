"""`dear roles discover`: from a CLIP and images to a role for every attention head."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.cli import roles_output
from dear.roles.settings import RoleSettings


def command(
    *,
    model: str | None = None,
    pretrained: str | None = None,
    data: str | None = None,
    images: int = 10_000,
    phrases: str | None = None,
    layers: str | None = None,
    rank: int = 80,
    phrases_a_head: int | None = None,
    attributes: list[str] | None = None,
    settings: RoleSettings = RoleSettings(),  # noqa: B008 (frozen, and its fields become options)
    sentence_model: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    bootstrap: int = 0,
    images_a_head: int = 10,
    contributions: Path | None = None,
    spans: Path | None = None,
    out: Path = Path("roles.json"),
    html: Path | None = None,
) -> roles_output.Written:
    """Find the role of every attention head of a CLIP's last layers.

    Decomposes the image embedding over heads, finds the phrases that span each head (TEXTSPAN), clusters them
    into concepts, and gives each head a role by its concept entropy. The same input gives the same table.
    The page also shows how much of the embedding each layer's heads carry, and images that heads respond to.

    Args:
        model: Backbone: an open_clip architecture, or tiny. If not given, ViT-B-16 with laion2b_s34b_b88k
            from the hub; for a task of the Attribute World, or without data, tiny.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        data: Images: a folder with or without folders of classes, a CSV or JSONL file, a zip, a benchmark or
            a task by name; their training images are used. Labels, if there are any, serve only to show
            accuracies on the page. For the tiny CLIP, scenes of the Attribute World if not given.
        images: How many images to use, evenly spread over the data set.
        phrases: Candidate phrases: general, world, or a file with one phrase per line. If not given, world
            for the tiny CLIP, else general.
        layers: Layers to analyse, counted from 1, such as 9-12; the last third of the tower if not given.
        rank: Dimensions of a head's contributions that are kept (the published r); at most its width + 1.
        phrases_a_head: Phrases selected for each head; a third of its dimensions if not given.
        attributes: Core attributes by name, such as color,shape,texture,object,location; if not given
            --settings.k of them are chosen.
        settings: Settings of the step from phrases to roles.
        sentence_model: Folder or hub name of the sentence-transformers model, all-MiniLM-L6-v2 if not given.
        device: Where to compute; auto uses the GPU if there is one.
        bootstrap: Number of samples of the images, drawn with replacement, from which roles are found again:
            the table and its page then show how often each head kept its role. Takes about as many times
            the time after the first step, and 4 bytes a value on disk (1 GB for ViT-B/16).
        images_a_head: How many of the images with the largest contribution along a head's first phrase the
            page shows, and as many with the smallest; 0 for none, at most 50. They are in the page only.
        contributions: File to write each image's contributions to (.npy, float32).
        spans: File to write the phrases of each head to, in TEXTSPAN's public text format.
        out: Where the role table is written.
        html: Where its page is written; beside the table if not given.
    """
    from dear.backbone import choice
    from dear.data.names import check_name

    choice.check_model(model)
    if data is not None:
        check_name(data)
    from dear.backbone.load import load_clip  # loads torch: what can be refused without it is
    from dear.cli.progress import StepProgress
    from dear.data.fewshot import Subset
    from dear.data.loading import load_images, of_world
    from dear.data.notes import held_notes
    from dear.errors import SettingsError
    from dear.roles.ablation import layer_curve
    from dear.roles.decompose import Decomposition, analysed_layers, spread
    from dear.roles.discover import discover
    from dear.roles.phrases import GENERAL, WORLD, load_pool
    from dear.roles.pictures import Pictures, check_count, pictures
    from dear.roles.table import make_place
    from dear.roles.textspan import Span
    from dear.roles.textspan_format import layer_range, write_textspan
    from dear.roles.world import WorldScenes

    if images < 1:
        raise SettingsError(f"images is {images}: it must be at least 1.")
    check_count(images_a_head)
    page = html or out.with_suffix(".html")
    for place in (out, page, contributions, spans):
        if place is not None:
            make_place(place)
    named = choice.chosen(model, pretrained, world=data is None or of_world([data]))
    pool = load_pool(phrases or (WORLD if named.model == choice.TINY else GENERAL))
    chosen = layer_range(layers) if layers else None
    if data is None and named.model != choice.TINY:
        raise SettingsError(f"{named.model} needs images: give a folder or a data set by name with --data.")
    with held_notes():
        dataset = None if data is None else load_images(data)
        choice.warn_of_toy(named.model, world=dataset is None or dataset.world)
        clip = load_clip(*named, device=device)
    if dataset is None:
        seen: WorldScenes | Subset = WorldScenes(images, clip.image_size)
    else:
        seen = Subset(dataset.train, spread(len(dataset.train), images))

    def name(image: int) -> str:
        """The file of an image, or its class, or its number."""
        if dataset is None or isinstance(seen, WorldScenes):
            return f"scene {image}"
        paths = getattr(dataset.train, "paths", None)
        if paths:
            return str(paths[int(seen.indices[image])])
        return dataset.classnames[int(seen.labels[image])]

    shown: list[Pictures] = []

    def choose(found: Decomposition, span: Span) -> None:
        shown.append(
            pictures(clip, seen, found, span.first, a_head=images_a_head, name=name, progress=progress)
        )

    with StepProgress() as progress:
        progress.note(pool.notice)
        table = discover(
            clip,
            seen,
            pool,
            layers=chosen,
            rank=rank,
            top=phrases_a_head,
            settings=replace(settings, attributes=tuple(attributes or settings.attributes)),
            sentence_model=sentence_model,
            keep=contributions,
            bootstrap=bootstrap,
            facts={"data": data or "scenes of the Attribute World"},
            inspect=choose if images_a_head else None,
            progress=progress,
        )
        classes = dataset.classnames if dataset else ()
        text = clip.class_features(classes, dataset.templates) if dataset and len(classes) > 1 else None
        curve = layer_curve(clip, seen, analysed_layers(clip, chosen), text, progress=progress)
    if spans is not None:
        write_textspan(spans, {(h.layer, h.head): h.phrases for h in table.heads})
    return roles_output.write(table, out, page, curve=curve, pictures=shown[0] if shown else None)


def render(result: roles_output.Written, console: Console) -> None:
    """Show the table and where it is."""
    roles_output.render(result, console)
