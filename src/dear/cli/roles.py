"""`dear roles show`, `compare` and `ablate`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dear.cli.options import Backbone
from dear.cli.output import PrintableConsole
from dear.cli.output import table as grid
from dear.cli.parsing import Flat
from dear.errors import SettingsError
from dear.reading.typed import PositiveInt, check_value
from dear.roles.settings import check_table
from dear.text import plural

if TYPE_CHECKING:
    from dear.roles.ablation import LayerCurve
    from dear.roles.compare import Comparison, ConceptComparison, ConceptHeads
    from dear.roles.inspection import Inspection
    from dear.roles.table import RoleTable

PHRASES = 8  # of a head that are shown: all that the paper prints


def write_table(
    table: "RoleTable",
    out: Path | None,
    html: Path | None,
    inspection: "Inspection | None" = None,
) -> dict[str, Any]:
    """Write a table and its page atomically to the given paths; None writes nothing. Returns them with what
    to know before trusting the table, the (layer, head) of heads whose role is unclear and, of a discovery,
    how much of the embedding the heads of each layer carry.

    The inspection is not part of the table: records and their keys hold tables.
    """
    from dear.report.render import write_html
    from dear.report.roles_page import roles_page
    from dear.roles.phrase_map import map_phrases
    from dear.roles.trust import doubts, unclear
    from dear.writing import require_writable

    if out is not None:
        require_writable(out)
        table.save(out)
    if html is not None:
        write_html(html, roles_page(table, inspection=inspection, phrases=map_phrases(table)))
    curve = None if inspection is None else inspection.curve
    return {
        "roles": table.to_json(),
        "out": out,
        "html": html,
        "notes": doubts(table, curve),
        "unclear": [(head.layer, head.head) for head in table.heads if unclear(head)],
        "layers": curve,
    }


def command_show(
    table: str,
    *,
    variant: Literal["as-is", "shuffled", "random", "concept"] = "as-is",
    seed: int = 1,
    out: Path | None = None,
    html: Path | None = None,
    data: str | None = None,
    backbone: Flat[Backbone] = Backbone(),
    images: int = 1000,
    images_a_head: int = 10,
) -> dict[str, Any]:
    """Show a role table, or another one made from it.

    With --data, the page also shows what the heads do on your own images: which images each head responds to
    and where in them it looks, what the heads of each layer carry, and MLPs beside heads. This loads the
    model.

    Args:
        table: A file, or a table in the package: discovered or ground-truth (of the tiny CLIP), published
            or textspan (of ViT-B/16).
        variant: The table to make from it. shuffled has the same roles, shuffled among the heads; random
            draws the role of each head anew; concept assigns roles by dominant concepts alone, as in the
            paper's table.
        seed: Seed of the variant.
        out: File to write the table to.
        html: File to write the page of the table to.
        data: Images for the page: a folder, a table, a zip, or the name of a benchmark or of a task. Labels
            are not used.
        images: How many images to use, evenly spread over the training images of the data.
        images_a_head: How many images of each head the page shows, as many with the largest contribution as
            with the smallest. 0 shows none; the most is 50.
    """
    check_table(table)
    if data is not None and html is None:
        raise SettingsError("--data is for the page: give its file with --html.")
    check_value("images", images, PositiveInt)
    from dear.roles.table import named_table  # loads torch: what can be refused without it is
    from dear.roles.variants import by_concept, draw_roles, shuffle_roles

    roles = named_table(table)
    match variant:
        case "shuffled":
            roles = shuffle_roles(roles, seed)
        case "random":
            roles = draw_roles(roles, seed)
        case "concept":
            roles = by_concept(roles)
    inspection = None
    if data is not None:
        inspection = _inspect(roles, backbone, data, images, images_a_head)
    return write_table(roles, out, html, inspection)


def _inspect(table: "RoleTable", backbone: Backbone, data: str, images: int, a_head: int) -> "Inspection":
    """Inspect the heads of a table on images, with the model that the table is of unless another is named."""
    from dear.backbone.names import TINY
    from dear.cli.progress import StepProgress
    from dear.data.fewshot import Subset
    from dear.data.loading import deferred_warnings, load_images
    from dear.data.names import check_name
    from dear.roles.decompose import evenly_spaced
    from dear.roles.inspection import inspect_heads
    from dear.roles.pictures import ImagesOfHead

    check_name(data)
    check_value("images_a_head", a_head, ImagesOfHead)
    if backbone.model is None:
        model, weights = table.weights.model, backbone.pretrained or table.weights.pretrained
        backbone = replace(backbone, model=model, pretrained=None if model == TINY else weights)
    backbone.check()
    with deferred_warnings():
        dataset = load_images(data)
        clip = backbone.load(world=dataset.world)
    chosen = Subset(dataset.train, evenly_spaced(len(dataset.train), images))
    names = chosen.paths or [dataset.classnames[label] for label in chosen.labels.tolist()]
    with StepProgress() as progress:
        return inspect_heads(clip, table, chosen, a_head=a_head, name=names.__getitem__, progress=progress)


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show a table: a grid of roles, the heads with their phrases, the concepts, and where the files are."""
    from dear.roles.table import ROLES, UNIT, HeadRole
    from dear.roles.trust import share_mark

    roles = result["roles"]
    heads, weights = roles["heads"], roles["weights"]
    attributes = f"core attributes: {', '.join(roles['attributes']) or 'none'}"
    console.say(roles["source"], f"{weights['model']}/{weights['pretrained']}", attributes, "")
    layers, numbers = (sorted({head[key] for head in heads}) for key in ("layer", "head"))
    cells = {(h["layer"], h["head"]): (ROLES[h["role"]][0], h["concept"]) for h in heads}
    rows = [[layer, *(cells.get((layer, head), "") for head in numbers)] for layer in layers]
    console.print(grid("Role and dominant concept by layer and head", ["", *map(str, numbers)], rows))
    if any(h["phrases"] for h in heads):
        rows = []
        for h in heads:
            share = share_mark(HeadRole(h["layer"], h["head"], h["role"], share=h["share"]))
            phrases = " · ".join(h["phrases"][:PHRASES])
            facts = h["layer"], h["head"], ROLES[h["role"]][0], h["concept"]
            rows.append([*facts, share, h["entropy"], phrases])
        columns = ["layer", "head", "role", "concept", "share", "entropy", "phrases"]
        console.print(grid(f"Heads (entropy in {UNIT})", columns, rows))
    if examples := roles["evidence"].get("examples"):
        rows = [[e["layer"], e["head"], e["concept"], " · ".join(e["phrases"])] for e in examples]
        columns = ["layer", "head", "concept", "phrases"]
        console.print(grid("Examples of the paper's main text (Table 1)", columns, rows))
    if clusters := roles["evidence"].get("clusters"):
        rows = [[c["concept"], c["size"], " · ".join(c["exemplars"][:3])] for c in clusters]
        title = f"{len(clusters)} concepts of the phrases"
        if (dbcv := roles["evidence"].get("dbcv")) is not None:
            pool = (
                ""
                if roles["settings"].get("clustered") == "heads"
                else " and the pool's, those of both twice"
            )
            title = f"{len(clusters)} clusters (DBCV {dbcv:.2f}) of the heads' phrases{pool}"
        console.print(grid(title, ("concept", "phrases", "exemplars"), rows))
    if result["layers"] is not None:
        _render_curve(result["layers"], console)
    files = (("Role table", result["out"]), ("Page", result["html"]))
    console.say(*result["notes"], *(f"{name}: {path}" for name, path in files if path is not None))


def _render_curve(curve: "LayerCurve", console: PrintableConsole) -> None:
    """Show the ablation by layer, losses in percent."""
    columns = ["without heads of layer", "cosine", "lost (%)", "of it and later ones: cosine", "lost (%)"]
    rows = [
        (of.layer, of.alone.cosine, 100 * of.alone.lost, of.onwards.cosine, 100 * of.onwards.lost)
        for of in curve.layers
    ]
    title = f"Heads' contributions replaced by their means over {plural(curve.images, 'image')}"
    console.print(grid(title, columns, rows))


def command_compare(
    first: str, second: str, *, by: Literal["head", "concept"] | None = None, heads: bool = False
) -> Any:
    """Compare two role tables: agreement, Cohen's kappa, and the confusion of concepts and roles.

    Concepts are compared on the heads for which both tables name one, and roles on all heads of layers that
    both tables have. The heads of two architectures do not correspond. For tables of two architectures, or
    with --by concept, the command shows how many heads each table has of each concept.

    Args:
        first: A file, or a table in the package: discovered or ground-truth (of the tiny CLIP), published
            or textspan (of ViT-B/16).
        second: The table to compare it with, named in the same way.
        by: What is compared: head by head, or what the tables have of each concept. By default head, but
            concept for tables of two architectures.
        heads: Show each head's concept and role in both tables.
    """
    for table in (first, second):
        check_table(table)
    from dear.roles.compare import (  # loads torch: what can be refused without it is
        compare,
        compare_concepts,
        correspond,
    )
    from dear.roles.table import named_table

    tables = named_table(first), named_table(second)
    if by == "concept" or (by is None and not heads and not correspond(*tables)):
        if heads:
            raise SettingsError("--heads shows single heads: it does not go with --by concept.")
        comparison: Any = compare_concepts(*tables)
    else:
        comparison = compare(*tables, heads=heads)
    # Two files may have the same source.
    sources = {"first": (comparison.first, first), "second": (comparison.second, second)}
    files = {name: f"{source} ({path})" for name, (source, path) in sources.items() if Path(path).is_file()}
    return replace(comparison, **files)


def render_compare(result: "Comparison | ConceptComparison", console: PrintableConsole) -> None:
    """Show agreement, kappa, confusion and entropies, or the heads of each concept."""
    from dear.roles.compare import ConceptComparison
    from dear.roles.table import UNIT

    console.say(f"first:  {result.first}", f"second: {result.second}", "")
    if isinstance(result, ConceptComparison):
        _render_concepts(result, console)
        return
    for title, labels in (("Dominant concepts", result.concepts), ("Roles", result.roles)):
        kappa = "–" if labels.kappa is None else f"{labels.kappa:.2f}"
        console.print(
            f"{title}: {labels.agree} of {labels.heads} heads agree ({100 * labels.agreement:.1f}%), kappa "
            f"{kappa}; always the second's most frequent: {100 * labels.majority:.1f}%"
        )
        rows = [[label, *row] for label, row in zip(labels.labels, labels.confusion, strict=True)]
        console.print(grid("first down, second across", ["", *labels.labels], rows))
    for table, entropies in (("second", result.entropy), ("first", result.own_entropy)):
        if entropies:
            words = ", ".join(f"{role} {value:.2f}" for role, value in entropies.items())
            console.print(f"mean concept entropy ({UNIT}) of the first by the {table}'s role: {words}")
    if result.heads:
        pairs = [
            (h.layer, h.head, *_pair(h.first_concept, h.second_concept), *_pair(h.first_role, h.second_role))
            for h in result.heads
        ]
        columns = ("layer", "head", "concept, first", "second", "role, first", "second")
        console.print(grid('Heads ("same": both tables agree)', columns, pairs))


def _render_concepts(result: "ConceptComparison", console: PrintableConsole) -> None:
    """Show what two tables have of each concept, and how much of it they share."""
    from dear.roles.table import UNIT

    def cells(of: "ConceptHeads | None") -> tuple[Any, ...]:
        if of is None:
            return 0, "–", 0, "–", "–"
        layers = ", ".join(map(str, of.layers))
        return of.heads, f"{100 * of.share:.0f}%", of.core, "–" if of.entropy is None else of.entropy, layers

    rows = [[name, *cells(ours), *cells(theirs)] for name, (ours, theirs) in result.concepts.items()]
    names = "heads", "of all", "core", f"entropy ({UNIT})", "layers"
    columns = ["concept", *(f"{table}: {name}" for table in ("first", "second") for name in names)]
    console.print(grid("Heads by dominant concept", columns, rows))
    console.say(
        f"The tables share {100 * result.overlap:.1f}% of their heads' concepts: the sum over concepts of "
        "the smaller of the two shares.",
        f"core attributes of both: {', '.join(result.attributes) or 'none'}",
    )


def _pair(first: str | None, second: str | None) -> tuple[str, str]:
    return first or "–", "same" if first == second else second or "–"


def command_ablate(
    *,
    data: str = "travel-posters",
    backbone: Flat[Backbone] = Backbone(),
    by: Literal["layer", "head", "role"] = "layer",
    layers: str | None = None,
    heads: str | None = None,
    roles: Path | None = None,
    images: int | None = None,
) -> dict[str, Any]:
    """Measure zero-shot accuracy without some heads: their contributions are replaced by their means.

    Args:
        data: A folder of images (also with the split list of CoOp's code), a table (.csv, .tsv or .jsonl), a
            zip, a Hugging Face data set (hf:OWNER/NAME), or the name of a benchmark or of a task. Its test
            images are used.
        by: What is replaced at a time: a layer, a head, or all heads of a role.
        layers: Layers of the heads, counted from 1, such as 9-12. By default the last third of the tower.
        heads: Replace this one set of heads together, given as LAYER.HEAD: 9.0,10.3.
        roles: Role table for --by role: a file, or discovered, ground-truth, published or textspan.
        images: How many test images to use, evenly spread over the data. By default all.
    """
    from dear.data.names import check_name

    check_name(data)
    backbone.check()
    from dear.cli.progress import StepProgress  # loads torch: what can be refused without it is
    from dear.data.fewshot import Subset
    from dear.data.loading import deferred_warnings, load_dataset
    from dear.roles.ablation import head_set, head_sets, mean_ablation, sets_by_role
    from dear.roles.decompose import analyzed_layers, evenly_spaced
    from dear.roles.table import role_table
    from dear.roles.textspan_format import layer_range

    check_value("images", images, PositiveInt | None)
    with deferred_warnings():
        dataset = load_dataset(data)
        clip = backbone.load(world=dataset.world)
        layer_numbers = analyzed_layers(clip, layer_range(layers) if layers else None)
        if heads:
            sets = head_set(heads.split(","))
        elif by == "role":
            table = role_table(clip, roles)
            table.check(clip.identity)
            sets = sets_by_role(table)
        else:
            sets = head_sets(clip, by, layer_numbers)
    test = dataset.test if images is None else Subset(dataset.test, evenly_spaced(len(dataset.test), images))
    text = clip.class_features(dataset.classnames, dataset.templates)
    with StepProgress() as progress:
        whole, ablated = mean_ablation(clip, test, text, sets, progress=progress)
    return {
        "data": dataset.name,
        "images": len(test),
        "classes": len(dataset.classnames),
        "whole": whole,
        "ablated": ablated,
        "heads": {name: len(heads_of_set) for name, heads_of_set in sets.items()},
    }


def render_ablate(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show accuracies in percent, and points lost."""
    images, classes = plural(result["images"], "test image"), plural(result["classes"], "class")
    console.say(f"{result['data']}: {images}, {classes}")
    whole, heads = result["whole"], result["heads"]
    rows = [
        (name, heads.get(name, 0), 100 * accuracy, 100 * (whole - accuracy))
        for name, accuracy in {"nothing": whole, **result["ablated"]}.items()
    ]
    console.print(grid(None, ("mean-ablated", "heads", "zero-shot accuracy (%)", "points lost"), rows))
