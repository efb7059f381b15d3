"""`dear roles show`: a role table in the terminal and as a page; shuffled and random ones for ablations."""

from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.cli import roles_output


def command(
    table: str,
    *,
    variant: Literal["as-is", "shuffled", "random"] = "as-is",
    seed: int = 1,
    out: Path | None = None,
    html: Path | None = None,
) -> roles_output.Written:
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

    found = named_table(table)
    if variant != "as-is":
        found = found.shuffled(seed) if variant == "shuffled" else found.random(seed)
    return roles_output.write(found, out, html)


def render(result: roles_output.Written, console: Console) -> None:
    """Show the table with more of its phrases."""
    roles_output.render(result, console, phrases=6)
