"""`dear roles show` and `dear roles compare`, and how the role commands write and show a table."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from dear.cli.output import table as rich_table

if TYPE_CHECKING:
    from dear.roles.ablation import LayerCurve
    from dear.roles.compare import Agreement, Comparison
    from dear.roles.pictures import Pictures
    from dear.roles.table import RoleTable

SHORT = {"core": "core", "other-specialized": "other", "mixed": "mixed", "generalization": "general"}


@dataclass(frozen=True)
class WrittenTable:
    """A role table and where it is.

    Attributes:
        html: The table's page.
        notes: What to know before trusting the table.
        unclear: The layer and the head of each head whose role is unclear.
        layers: Of a discovery, how much of the embedding the heads of each layer carry.
    """

    roles: dict[str, Any]
    out: Path | None
    html: Path | None
    notes: list[str] = field(default_factory=list)
    unclear: list[tuple[int, int]] = field(default_factory=list)
    layers: "LayerCurve | None" = None


def write_table(
    table: "RoleTable",
    out: Path | None,
    html: Path | None,
    *,
    curve: "LayerCurve | None" = None,
    pictures: "Pictures | None" = None,
) -> WrittenTable:
    """Write a table and its page atomically to the given paths; None writes nothing. The curve and the
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
    unclear_heads = [(head.layer, head.head) for head in table.heads if unclear(head)]
    return WrittenTable(table.to_json(), out, html, doubts(table, curve), unclear_heads, curve)


def render(result: WrittenTable, console: Console, *, phrases: int = 3) -> None:
    """Show a table: a grid of roles, the heads with their phrases, the concepts, and where the files are."""
    _render_heads(result.roles, console, phrases)
    if result.layers is not None:
        console.print(_layer_table(result.layers))
    for note in result.notes:
        console.print(note, markup=False)
    for name, path in (("Role table", result.out), ("Page", result.html)):
        if path is not None:
            console.print(f"{name}: {path}", markup=False)


def _render_heads(roles: dict[str, Any], console: Console, phrases: int) -> None:
    from dear.roles.entropy import UNIT
    from dear.roles.table import HeadRole, RoleTable
    from dear.roles.trust import share_mark, stability

    weights = roles["weights"]
    console.print(f"{roles['source']}\n{weights['model']}/{weights['pretrained']}", markup=False)
    console.print(f"core attributes: {', '.join(roles['attributes']) or 'none'}\n", markup=False)
    heads = roles["heads"]
    layers, numbers = sorted({h["layer"] for h in heads}), sorted({h["head"] for h in heads})
    cells = {(h["layer"], h["head"]): f"{SHORT[h['role']]}\n{h['concept'] or '–'}" for h in heads}
    rows = [[layer, *(cells.get((layer, head), "") for head in numbers)] for layer in layers]
    console.print(rich_table("Role and dominant concept by layer and head", ["", *map(str, numbers)], rows))
    if phrases and any(h["phrases"] for h in heads):
        stable = stability(RoleTable.from_json(roles, "the role table"))
        rows = [
            [
                h["layer"],
                h["head"],
                SHORT[h["role"]],
                h["concept"],
                share_mark(HeadRole(h["layer"], h["head"], h["role"], share=h["share"])),
                *([stable.get((h["layer"], h["head"]), "")] if stable else []),
                h["entropy"],
                " · ".join(h["phrases"][:phrases]),
            ]
            for h in heads
        ]
        columns = ["layer", "head", "role", "concept", "share", *(["role kept"] if stable else [])]
        columns += ["entropy", "first phrases"]
        console.print(rich_table(f"Heads (entropy in {UNIT})", columns, rows))
    if clusters := roles["evidence"].get("clusters"):
        rows = [[c["concept"], c["size"], " · ".join(c["exemplars"][:3])] for c in clusters]
        title = f"{len(clusters)} clusters (DBCV {roles['evidence']['dbcv']:.2f})"
        console.print(rich_table(title, ("concept", "phrases", "exemplars"), rows))


def _layer_table(curve: "LayerCurve") -> object:
    """The ablation by layer; losses and accuracies in percent."""
    accuracy = [] if curve.whole is None else ["zero-shot (%)"]
    columns = ["without heads of layer", "cosine", "lost (%)", *accuracy]
    columns += ["of it and later ones: cosine", "lost (%)", *accuracy]
    rows: list[list[object]] = []
    for layer in curve.layers:
        rows.append([layer.layer])
        for part in (layer.alone, layer.onwards):
            rows[-1] += [part.cosine, 100 * part.lost]
            rows[-1] += [] if part.accuracy is None else [100 * part.accuracy]
    unchanged = f"; zero-shot {100 * curve.whole:.1f}% unchanged" if curve.whole is not None else ""
    title = f"Heads' contributions replaced by their means over {curve.images} images{unchanged}"
    return rich_table(title, columns, rows)


def command_show(
    table: str,
    *,
    variant: Literal["as-is", "shuffled", "random"] = "as-is",
    seed: int = 1,
    out: Path | None = None,
    html: Path | None = None,
) -> WrittenTable:
    """Show a role table, or a shuffled or random one made from it.

    Args:
        table: A file, or a table in the package: discovered or ground-truth (of the tiny CLIP), published.
        variant: Shuffled permutes the same roles over the heads at random; random draws each head's role
            anew.
        seed: Seed of the variant.
        out: File to write the shown table to.
        html: File to write its page to.
    """
    from dear.roles.names import check_table

    check_table(table)
    from dear.roles.packaged import named_table  # loads torch: what can be refused without it is

    roles = named_table(table)
    if variant != "as-is":
        roles = roles.shuffled(seed) if variant == "shuffled" else roles.random(seed)
    return write_table(roles, out, html)


def render_show(result: WrittenTable, console: Console) -> None:
    """Show the table with more of its phrases."""
    render(result, console, phrases=6)


def command_compare(first: str, second: str, *, heads: bool = False) -> Any:
    """Compare two role tables: agreement, Cohen's kappa, and the confusion of concepts and roles.

    Concepts are compared on the heads for which both tables name one, roles on all heads of shared layers.

    Args:
        first: A file, or a table in the package: discovered or ground-truth (of the tiny CLIP), published.
        second: The table to compare it with, given in the same way.
        heads: Show each head's concept and role in both tables.
    """
    from dear.roles.names import check_table

    for table in (first, second):
        check_table(table)
    from dear.roles.compare import compare  # loads torch: what can be refused without it is
    from dear.roles.packaged import named_table

    return compare(named_table(first), named_table(second), heads=heads)


def render_compare(result: "Comparison", console: Console) -> None:
    """Show agreement, kappa, confusion and entropies."""
    from dear.roles.entropy import UNIT

    console.print(f"first:  {result.first}\nsecond: {result.second}\n", markup=False)
    for title, labels in (("Dominant concepts", result.concepts), ("Roles", result.roles)):
        kappa = "–" if labels.kappa is None else f"{labels.kappa:.2f}"
        console.print(
            f"{title}: {labels.agree} of {labels.heads} heads agree ({100 * labels.agreement:.1f}%), kappa "
            f"{kappa}; always the second's most frequent: {100 * labels.majority:.1f}%"
        )
        console.print(confusion(labels))
    for table, entropies in (("second", result.entropy), ("first", result.own_entropy)):
        if entropies:
            words = ", ".join(f"{role} {value:.2f}" for role, value in entropies.items())
            console.print(f"mean concept entropy ({UNIT}) of the first by the {table}'s role: {words}")
    if result.heads:
        rows = [
            [
                head.layer,
                head.head,
                *_pair(head.first_concept, head.second_concept),
                *_pair(head.first_role, head.second_role),
            ]
            for head in result.heads
        ]
        columns = ("layer", "head", "concept, first", "second", "role, first", "second")
        console.print(rich_table('Heads ("same": both tables agree)', columns, rows))


def _pair(first: str | None, second: str | None) -> tuple[str, str]:
    return first or "–", "same" if first == second else second or "–"


def confusion(labels: "Agreement") -> object:
    """Heads by the first's label (down) and the second's (across); labels that never occur are omitted."""
    down = [i for i, row in enumerate(labels.confusion) if any(row)]
    across = [j for j in range(len(labels.labels)) if any(row[j] for row in labels.confusion)]
    rows = [[labels.labels[i], *(labels.confusion[i][j] or None for j in across)] for i in down]
    return rich_table("first down, second across", ["", *(labels.labels[j] for j in across)], rows)
