"""`dear roles compare`: the agreement of two role tables."""

from typing import TYPE_CHECKING, Any

from rich.console import Console

from dear.cli.output import table as rich_table

if TYPE_CHECKING:
    from dear.roles.compare import Agreement, Comparison


def command(first: str, second: str, *, heads: bool = False) -> Any:
    """Compare two role tables: agreement, Cohen's kappa, and the confusion of concepts and roles.

    Concepts are compared on the heads for which both tables name one, roles on all heads of shared layers.

    Args:
        first: A file, or a table in the package: discovered or ground-truth (of the tiny CLIP), published.
        second: The table to compare it with, given in the same way.
        heads: Show each head's concept and role in both tables.
    """
    from dear.roles.names import check_table

    for one in (first, second):
        check_table(one)
    from dear.roles.compare import compare  # loads torch: what can be refused without it is
    from dear.roles.packaged import named_table

    return compare(named_table(first), named_table(second), heads=heads)


def render(result: "Comparison", console: Console) -> None:
    """Show agreement, kappa, confusion and entropies."""
    from dear.roles.entropy import UNIT

    console.print(f"first:  {result.first}\nsecond: {result.second}\n", markup=False)
    for title, one in (("Dominant concepts", result.concepts), ("Roles", result.roles)):
        kappa = "–" if one.kappa is None else f"{one.kappa:.2f}"
        console.print(
            f"{title}: {one.agree} of {one.heads} heads agree ({100 * one.agreement:.1f}%), kappa {kappa}; "
            f"always the second's most frequent: {100 * one.majority:.1f}%"
        )
        console.print(confusion(one))
    for whose, values in (("second", result.entropy), ("first", result.own_entropy)):
        if values:
            words = ", ".join(f"{role} {value:.2f}" for role, value in values.items())
            console.print(f"mean concept entropy ({UNIT}) of the first by the {whose}'s role: {words}")
    if result.heads:
        rows = [
            [
                one.layer,
                one.head,
                *_pair(one.first_concept, one.second_concept),
                *_pair(one.first_role, one.second_role),
            ]
            for one in result.heads
        ]
        columns = ("layer", "head", "concept, first", "second", "role, first", "second")
        console.print(rich_table('Heads ("same": both tables agree)', columns, rows))


def _pair(first: str | None, second: str | None) -> tuple[str, str]:
    return first or "–", "same" if first == second else second or "–"


def confusion(one: "Agreement") -> object:
    """Heads by the first's label (down) and the second's (across); labels that never occur are omitted."""
    down = [i for i, row in enumerate(one.confusion) if any(row)]
    across = [j for j in range(len(one.labels)) if any(row[j] for row in one.confusion)]
    rows = [[one.labels[i], *(one.confusion[i][j] or None for j in across)] for i in down]
    return rich_table("first down, second across", ["", *(one.labels[j] for j in across)], rows)
