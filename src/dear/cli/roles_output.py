"""How the role commands show a table, and write it with its page."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dear.cli.output import table as rich_table

if TYPE_CHECKING:
    from dear.roles.ablation import LayerCurve
    from dear.roles.pictures import Pictures
    from dear.roles.table import RoleTable

SHORT = {"core": "core", "other-specialized": "other", "mixed": "mixed", "generalization": "general"}


@dataclass(frozen=True)
class Written:
    """A role table, where it was written, its page, what to know before trusting it, the layer and head of
    each unclear head, and, of a discovery, how much of the embedding the heads of each layer carry.
    """

    roles: dict[str, Any]
    out: Path | None
    html: Path | None
    notes: list[str] = field(default_factory=list)
    unclear: list[tuple[int, int]] = field(default_factory=list)
    layers: "LayerCurve | None" = None


def write(
    table: "RoleTable",
    out: Path | None,
    html: Path | None,
    *,
    curve: "LayerCurve | None" = None,
    pictures: "Pictures | None" = None,
) -> Written:
    """Write the table and its page atomically to the given paths; None writes nothing. The curve and the
    pictures are not part of the table: records and their keys hold tables.
    """
    from dear.report.roles_page import write_roles_page
    from dear.roles.table import make_place
    from dear.roles.trust import doubts, unclear

    if out is not None:
        make_place(out)
        table.save(out)
    if html is not None:
        write_roles_page(html, table.to_json(), curve=curve, pictures=pictures)
    doubtful = [(head.layer, head.head) for head in table.heads if unclear(head)]
    return Written(table.to_json(), out, html, doubts(table, curve), doubtful, curve)


def render(result: Written, console: Console, *, phrases: int = 3) -> None:
    """Show a table: a grid of roles, the heads with their phrases, the concepts, and where the files are."""
    show(result.roles, console, phrases=phrases)
    if result.layers is not None:
        console.print(layer_table(result.layers))
    for note in result.notes:
        console.print(note, markup=False)
    for name, path in (("Role table", result.out), ("Page", result.html)):
        if path is not None:
            console.print(f"{name}: {path}", markup=False)


def show(roles: dict[str, Any], console: Console, *, phrases: int = 3) -> None:
    """Show a table."""
    from dear.roles.entropy import UNIT
    from dear.roles.table import HeadRole, RoleTable
    from dear.roles.trust import share_mark, stability

    weights = roles["weights"]
    console.print(f"{roles['source']}\n{weights['model']}/{weights['pretrained']}", markup=False)
    console.print(f"core attributes: {', '.join(roles['attributes']) or 'none'}\n", markup=False)
    heads = roles["heads"]
    layers, columns = sorted({h["layer"] for h in heads}), sorted({h["head"] for h in heads})
    cells = {(h["layer"], h["head"]): f"{SHORT[h['role']]}\n{h['concept'] or '–'}" for h in heads}
    rows = [[layer, *(cells.get((layer, head), "") for head in columns)] for layer in layers]
    console.print(rich_table("Role and dominant concept by layer and head", ["", *map(str, columns)], rows))
    if phrases and any(h["phrases"] for h in heads):
        kept = stability(RoleTable.from_json(roles, "the role table"))
        rows = [
            [
                h["layer"],
                h["head"],
                SHORT[h["role"]],
                h["concept"],
                share_mark(HeadRole(h["layer"], h["head"], h["role"], share=h["share"])),
                *([kept.get((h["layer"], h["head"]), "")] if kept else []),
                h["entropy"],
                " · ".join(h["phrases"][:phrases]),
            ]
            for h in heads
        ]
        columns_of = (
            "layer",
            "head",
            "role",
            "concept",
            "share",
            *(["role kept"] if kept else []),
            "entropy",
            "first phrases",
        )
        console.print(rich_table(f"Heads (entropy in {UNIT})", columns_of, rows))
    if found := roles["evidence"].get("clusters"):
        rows = [[c["concept"], c["size"], " · ".join(c["exemplars"][:3])] for c in found]
        dbcv = roles["evidence"]["dbcv"]
        console.print(
            rich_table(f"{len(found)} clusters (DBCV {dbcv:.2f})", ("concept", "phrases", "exemplars"), rows)
        )


def layer_table(curve: "LayerCurve") -> object:
    """The ablation by layer; losses and accuracies in percent."""
    known = curve.whole is not None
    columns = ["without heads of layer", "cosine", "lost (%)", *(["zero-shot (%)"] if known else [])]
    columns += ["of it and later ones: cosine", "lost (%)", *(["zero-shot (%)"] if known else [])]
    rows = [
        [
            one.layer,
            *(
                value
                for part in (one.alone, one.onwards)
                for value in (
                    part.cosine,
                    100 * part.lost,
                    *([] if part.accuracy is None else [100 * part.accuracy]),
                )
            ),
        ]
        for one in curve.layers
    ]
    whole = f"; zero-shot {100 * curve.whole:.1f}% unchanged" if curve.whole is not None else ""
    title = f"Heads' contributions replaced by their means over {curve.images} images{whole}"
    return rich_table(title, columns, rows)
