"""`dear models`: which open_clip architectures load, tried one by one."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dear.backbone.choice import Verdict
from dear.cli.output import progress_console, table


@dataclass(frozen=True)
class Tried:
    """What was tried, with the numbers of architectures that work and that are refused."""

    open_clip: str
    works: int
    refused: int
    models: list[Verdict]
    written: Path | None


def command(
    *, names: list[str] | None = None, compare_below: float = 0.0, write: Path | None = None
) -> Tried:
    """Build every open_clip architecture, without memory for its weights, and check whether it is supported.

    Args:
        names: Architectures to try; all that open_clip knows if not given.
        compare_below: Compare features with open_clip's own under random weights, for architectures of fewer
            million parameters than this (0: none).
        write: Markdown file to write the table to.
    """
    from importlib.metadata import version

    from dear.backbone.catalogue import markdown, names_of_open_clip, try_architecture
    from dear.errors import OutputError
    from dear.writing.files import atomic_write

    console, models = progress_console(), []
    architectures = names or names_of_open_clip()
    with console.status("building"):
        for name in architectures:
            models.append(try_architecture(name, compare_below))
    if write is not None:
        try:
            with atomic_write(write) as file:
                file.write(markdown(models, version("open_clip_torch"), compare_below).encode())
        except OSError as error:
            raise OutputError(f"cannot write {write}: {error}. Choose another file with --write.") from error
    counts = Counter(model.works for model in models)
    return Tried(version("open_clip_torch"), counts[True], counts[False], models, write)


def render(result: Tried, console: Console) -> None:
    """Show the table and the counts."""
    rows = [
        (m.name, "works" if m.works else "refused", m.parameters and round(m.parameters, 1), m.layers,
         m.heads, m.image_size, m.difference and f"{m.difference:.1e}", m.reason)
        for m in result.models
    ]  # fmt: skip
    columns = ("architecture", "", "M parameters", "layers", "heads", "pixels", "difference", "reason")
    console.print(table(None, columns, rows), markup=False)
    console.print(f"open_clip {result.open_clip}: {result.works} work, {result.refused} are refused")
    if result.written:
        console.print(f"written to {result.written}", markup=False)
