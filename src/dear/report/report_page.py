"""The report of run records: one self-contained HTML file, with its tables as CSV, LaTeX and Markdown and its
figures as SVG and PDF.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas import DataFrame

from dear.backbone.names import TINY
from dear.errors import UnknownNameError, warn
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.records import part_of
from dear.methods.registry import FROZEN
from dear.report.drawing import Drawing
from dear.report.grid import Cell, Grid, GridRow, csv_file, figure_latex, markdown_text
from dear.report.plots import fusion_map, mean_curves, training_curves
from dear.report.protocols import summaries_of
from dear.report.records import (
    Record,
    data_set,
    data_set_title,
    distinct,
    distinct_by_key,
    grouped,
    method_label,
    protocol,
    read_folder,
    readable,
    record_title,
    runs_frame,
    settings_of,
)
from dear.report.render import render_page, write_page
from dear.report.roles_page import head_role_map
from dear.report.run_mistakes import (
    RunMistakes,
    describe_tests,
    mistakes_by_part,
    mistakes_files,
    mistakes_page,
)
from dear.report.selection import label_of, of_weights, select_runs
from dear.report.summary import Figure, ProtocolSummary
from dear.roles.table import RoleTable
from dear.text import plural, without_surrogates

PUBLISHED = "Numbers labeled published are the paper's; all others come from the run records."
TOY = (
    "The backbone is the tiny CLIP that comes with the package, a toy that knows drawings alone: none of "
    "these numbers holds for photographs."
)
FUSION = (
    "The score of a class is a sum of terms: of the class feature (cls), and of each attribute. The weights "
    "say how much each counts; together they are 100%."
)
PAGE = "report.html"
SELECTION = (
    "Nothing is selected on test images: the last epoch is tested, or the best on validation images where a "
    "record says so. The exception is what is marked as tuned on targets: there a method's authors chose "
    "settings for each target."
)


@dataclass(frozen=True)
class ReportPage:
    """The text of a report, its figures, its tables (percent), and the mistakes of all runs."""

    text: str
    drawings: tuple[Drawing, ...]
    tables: tuple[Grid, ...]
    mistakes: tuple[RunMistakes, ...]


@dataclass(frozen=True)
class FolderReport:
    """The files that were written, the tables (percent), and the number of records."""

    html: Path
    files: tuple[Path, ...]
    tables: tuple[Grid, ...]
    records: int


def report_page(
    *,
    title: str,
    records: Iterable[Record],
    notes: Sequence[str] = (),
    against: str | None = None,
    main: str | None = None,
) -> ReportPage:
    """The report of run records; a deterministic function of its input and of the tested images that it
    shows. ``against`` is the method that all others are compared with in a table of its own; the mistakes of
    it, or else of zero-shot, are beside those of the main method, which is ``main`` if given.

    Raises:
        DataError: for records that cannot be combined in one table, or other malformed input.
        UnknownNameError: if no run is of ``against`` or of ``main``.
    """
    records = readable(records)
    against, main = (None if name is None else label_of(name, records) for name in (against, main))
    reference = FROZEN if FROZEN in map(method_label, records) else None
    summaries = summaries_of(records, reference, against)
    by_method = grouped(summaries[0].runs, method_label)
    main = _main_method(by_method) if main is None else main
    if main not in by_method:
        raise UnknownNameError("method among these runs", main, [*by_method])
    reference = reference if reference in by_method else None
    role_table = role_table_of(records)
    if fusion := fusion_summary(by_method[main]):
        summaries.append(fusion)
    grids = [grid for summary in summaries for grid in summary.grids]
    figures = [figure for summary in summaries for figure in summary.figures]
    if any(row.published for grid in grids for row in grid.rows) or any(
        "published" in column for grid in grids for column in grid.columns
    ):
        notes = [PUBLISHED, *notes]
    tested = [record for record in records if PROTOCOLS[protocol(record)].scored]
    parts = mistakes_by_part(tested)
    mistakes = mistakes_page(parts, tested, main, against or reference)
    losses, validated = (mean_curves(by_method[main], measure) for measure in ("loss", "val"))
    training = training_curves(losses, validated)
    roles = head_role_map(role_table) if role_table else None
    text = render_page(
        "report.html.j2",
        **_head(summaries[0].standing, summaries[0].runs, main, reference, parts),
        title=title,
        main=main,
        summaries=summaries,
        figures=grouped(figures, lambda figure: figure.grid),
        training=training,
        validated=bool(validated),
        roles=roles,
        role_source=role_table.source if role_table else "",
        mistakes=mistakes,
        notes=notes,
        provenance=_provenance(records),
        settings={method: _settings(runs) for method, runs in grouped(records, method_label).items()},
        data_sets=[
            (data_set_title(of_data[0]), [*map(str, part_of(of_data[0], "dataset").get("classes") or ())])
            for of_data in grouped(records, data_set).values()
        ],
    )
    matrices = [
        section.matrix
        for methods in mistakes.get("datasets", {}).values()
        for method in methods
        for _, section in methods[method]
        if method == main
    ]
    drawings = (*(figure.drawing for figure in figures), *matrices, training, roles)
    return ReportPage(text, tuple(filter(None, drawings)), tuple(grids), tuple(parts))


def write_folder_report(
    folder: Path,
    out: Path | None = None,
    *,
    title: str | None = None,
    weights: str | None = None,
    against: str | None = None,
    main: str | None = None,
    methods: Sequence[str] = (),
    data: Sequence[str] = (),
) -> FolderReport:
    """Write the report of a folder's records into ``out`` (its subfolder "report" if None).

    ``title`` is by default the name of the folder; ``against`` names the method that all others are compared
    with; ``main`` the method that the page is about. With ``methods`` only their runs are reported, with
    ``data`` only the runs on these data sets.

    Raises:
        DataError: for records that cannot be combined in one report.
        UnknownNameError: for a name that no run has.
        OutputError: if the output folder cannot be written to.
    """
    records = of_weights(select_runs(read_folder(folder), methods, data), weights)
    frame = runs_frame(readable(records))  # empty for retrievals alone
    title = title or without_surrogates(folder.resolve().name)
    notes = [SELECTION, *code_notes(records)]
    page = report_page(title=title, records=records, notes=notes, against=against, main=main)
    for note in notes[1:]:
        warn(note)
    tables = page.tables
    markdown = "\n".join(grid.to_markdown() for grid in tables)
    texts = {
        "report.tex": "\n".join([*(grid.to_latex() for grid in tables), *map(figure_latex, page.drawings)]),
        "report.md": f"# {markdown_text(title)}\n\n{markdown}",
    }
    files = {
        **{f"{grid.name}.csv": grid.to_csv() for grid in tables},
        **({"report.csv": csv_file(frame.drop(columns=["label", "title"]))} if len(frame) else {}),
        **{name: text.encode() for name, text in texts.items()},
        **mistakes_files(page.mistakes),
    }
    written = write_page(out or folder / "report", PAGE, page.text, files, page.drawings)
    return FolderReport(written[0], written, tables, len(records))


def code_notes(records: Iterable[Record]) -> list[str]:
    """A note for records that versions of the package with different code made, with their numbers."""
    versions = Counter(str((record.get("environment") or {}).get("code", "unknown")) for record in records)
    if len(versions) < 2:
        return []
    counts = ", ".join(f"{code} ({plural(count, 'record')})" for code, count in versions.items())
    return [
        f"These records were made by {len(versions)} versions of dear's code: {counts}. What changed between "
        "them may be in their differences."
    ]


def _head(
    standing: Mapping[str, Mapping[str, Cell]],
    runs: Sequence[Record],
    main: str,
    reference: str | None,
    parts: Sequence[RunMistakes],
) -> dict[str, Any]:
    """What the page begins with: the verdict, tiles of the main method's measures, and what was tested."""
    measure, cells = [*standing.items()][-1] if standing else ("", {})
    other = None if reference == main else reference
    verdict, tiles = f"Some runs of {main} are missing, so it has no average.", list[dict[str, str]]()
    if not standing:
        verdict = f"{main}: the images nearest to some images by each feature."
    if main in cells:
        tiles = [_tile(name, of[main], of.get(str(other))) for name, of in standing.items()]
        verdict = f"{main}: {measure} {tiles[-1]['value']}%"
        if points := tiles[-1]["points"]:
            side = {"+": "above", "−": "below"}[points[0]]
            gap = f"{points[1:]} points {side}" if points.strip("+−") != "0.0" else "the same as"
            verdict += f", {gap} {other} ({tiles[-1]['reference']}%)"
        best = max(cells, key=lambda method: cells[method].mean)
        if cells[best].value != cells[main].value:
            verdict += f"; the highest here is {best}, {cells[best].mean:.1f}%"
        verdict += "."
    titles = distinct(data_set_title(run) for run in runs)
    shots, seeds = (distinct(run.get(key) for run in runs if run.get(key)) for key in ("shots", "seed"))
    counts = [plural(len(titles), "data set"), plural(len(seeds), "seed")]
    if shots:
        counts.insert(1, f"{' or '.join(map(str, shots))} training images per class")
    return {
        "reference": other,
        "verdict": verdict,
        "tiles": tiles,
        "about": PROTOCOLS[protocol(runs[0])].summary,
        "setting": ", ".join(counts),
        "tests": describe_tests(parts, main) if len(titles) == 1 else [],
        "toy": TOY if part_of(runs[0], "weights").get("model") == TINY else "",
    }


def _tile(name: str, ours: Cell, theirs: Cell | None) -> dict[str, str]:
    """A measure in percent, beside the other method's and the points between."""
    tile = {"name": name, "value": f"{ours.mean:.1f}", "reference": "", "points": ""}
    if theirs is None:
        return tile
    points = f"{ours.mean - theirs.mean:+z.1f}".replace("-", "−")
    return tile | {"reference": f"{theirs.mean:.1f}", "points": points}


def _main_method(by_method: Mapping[str, Sequence[Record]]) -> str:
    """The method that the report is about: the first with fusion weights that is not an ablation, or the
    last.
    """
    unmodified = [method for method, runs in by_method.items() if not runs[0].get("variant")]
    fused = [method for method in unmodified if any(run.get("fusion_weights") for run in by_method[method])]
    others = [method for method in unmodified or by_method if method != FROZEN]
    return (fused or others[-1:] or list(by_method))[0]


def role_table_of(records: Sequence[Record]) -> RoleTable | None:
    """The role table of the records' unmodified runs, if they have one."""
    tables = ((run.get("roles") or {}).get("table") for run in records if not run.get("variant"))
    return next((RoleTable.from_json(table, record_title(records[0])) for table in tables if table), None)


def fusion_summary(runs: Sequence[Record]) -> ProtocolSummary | None:
    """The fusion weights of a method's runs, averaged over seeds: data sets down, features across; None if
    they have none.
    """
    runs = [run for run in runs if run.get("fusion_weights")]
    if not runs:
        return None
    weights = DataFrame([run["fusion_weights"] for run in runs]).fillna(0)
    means = 100 * weights.groupby([data_set_title(run) for run in runs], sort=False).mean()
    rows = tuple(GridRow(str(title), tuple(map(Cell, row))) for title, *row in means.itertuples())
    note = f"Fusion weights of {method_label(runs[0])} in percent, mean over seeds. {FUSION}"
    grid = Grid("fusion", "How features combine into the score", "Data set", tuple(means), rows, (note,))
    drawing = fusion_map(grid)
    caption = "Fusion weights in percent; darker is more."
    return ProtocolSummary(runs, [grid], [Figure("fusion", drawing, grid.title, caption)] if drawing else [])


def _provenance(records: Sequence[Record]) -> list[tuple[str, str]]:
    weights = part_of(records[0], "weights")
    rows = [
        ("Model", str(weights.get("model"))),
        ("Weights", str(weights.get("pretrained"))),
        ("SHA-256 of the weights", str(weights["sha256"])),
        ("Seeds", ", ".join(str(seed) for seed in distinct(record.get("seed") for record in records))),
    ]
    environments = distinct_by_key([record.get("environment") or {} for record in records])
    return rows + [(key.replace("_", " "), _joined(values)) for key, values in environments.items()]


def _settings(runs: Sequence[Record]) -> list[tuple[str, str]]:
    """A method's settings, with its number of trained parameters and the duration of a run."""
    rows = []
    for part, prefix in (("method", ""), ("train", "train.")):
        settings = distinct_by_key([settings_of(run, part) for run in runs])
        rows += [(f"{prefix}{key}", _joined(values)) for key, values in settings.items()]
    if parameters := distinct(run.get("trainable_parameters") for run in runs):
        rows.append(("trainable parameters", _joined(parameters)))
    for part in ("train", "test"):
        seconds = [float(spent) for run in runs if (spent := (run.get("seconds") or {}).get(part))]
        if seconds:
            rows.append((f"seconds per run, {part}", f"{sum(seconds) / len(seconds):.1f}"))
    return rows


def _joined(values: Sequence[Any]) -> str:
    return " | ".join(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for value in values
    )
