"""The report: one self-contained HTML file, written atomically."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dear.errors import DataError, OutputError
from dear.evaluation.protocols.registry import PROTOCOLS
from dear.evaluation.schema import part_of
from dear.methods.registry import FROZEN
from dear.report import plots
from dear.report.answers_page import answers_shown
from dear.report.protocols.base import Figure
from dear.report.protocols.registry import report_of
from dear.report.reading import (
    Record,
    data_set,
    data_set_title,
    distinct,
    grouped,
    mean_curves,
    mean_fusion_weights,
    method_label,
    protocol,
    readable,
)
from dear.report.sections import appendix_of, by_protocol, weights_of
from dear.report.svg import Drawing, inline
from dear.writing.files import atomic_write

OTHER_TOKENS_READ = {
    "exclusive": ", nor do these read the image (mask form exclusive)",
    "eq9": ", while these do read the image (mask form eq9)",
}
"""What the tokens of other attributes read in a core head, by mask form."""


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    records: Iterable[Record],
    role_table: Mapping[str, Any] | None = None,
    timings: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Path:
    """Write the report of run records to one self-contained HTML file, replacing an existing one.

    Raises:
        DataError: for records that cannot be combined in one table, or other malformed input.
        OutputError: if the file cannot be written; an existing file is then left unchanged.
    """
    text = report_html(
        title=title,
        records=records,
        role_table=role_table,
        timings=timings,
        notes=notes,
    )
    return write_whole(Path(path), text)


def report_html(
    *,
    title: str,
    records: Iterable[Record],
    role_table: Mapping[str, Any] | None = None,
    timings: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The text of the report; a deterministic function of its input."""
    return made_report(title=title, records=records, role_table=role_table, timings=timings, notes=notes).text


@dataclass(frozen=True)
class MadeReport:
    """The text of a report and its figures, in the order of the page."""

    text: str
    drawings: tuple[Drawing, ...]


def made_report(
    *,
    title: str,
    records: Iterable[Record],
    role_table: Mapping[str, Any] | None = None,
    timings: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    answers_of: Sequence[str] = (),
) -> MadeReport:
    """The text of the report with its figures; a deterministic function of its input and of the tested images
    that it shows. ``answers_of`` names the methods whose answers are shown (`answers_shown`).
    """
    drawings: list[Drawing] = []

    def shown(value: Any) -> Any:
        if not isinstance(value, Drawing):
            return value
        drawings.append(value)
        return inline(value)

    everything = readable(records)
    found = [record for record in everything if not report_of(protocol(record)).illustrates]
    if not found:
        raise DataError("there are no run records to report, only illustrations")
    if len(weights := weights_of(everything)) > 1:
        names = ", ".join(sha[:16] for sha in weights)
        raise DataError(f"the records mix different weights ({names}); report them separately")
    groups = by_protocol(everything)
    first = next((name for name, group in groups.items() if report_of(name).headline(group)), None)
    by_method = grouped(report_of(first).headline(groups[first]) if first else found, method_label)
    main, reference = _main(by_method), _reference(by_method)
    fusion = mean_fusion_weights(by_method[main])
    losses, validated = (mean_curves(by_method[main], measure) for measure in ("loss", "val"))
    role_table = role_table or role_table_of(found)
    own: dict[str, Any] = {}
    figures: dict[str, Figure] = {}
    for name in PROTOCOLS:
        material = report_of(name).page(groups.get(name, []), main, reference)
        own |= {key: shown(value) for key, value in material.items()}
    blocks: list[dict[str, Any]] = []
    for name, group in by_protocol(found).items():
        report = report_of(name)
        new = report.figures(group)
        drawings += [one.svg for one in new.values()]
        figures |= new
        tables = [grid for grid in report.tables(group) if grid.name not in report.placed]
        blocks.append({"section": report.section, "grids": tables})
    blocks.append({"section": None, "grids": appendix_of(found)})
    illustrations = [report_of(name) for name in groups if report_of(name).illustrates]
    answers = answers_shown(found, main, reference, answers_of)
    if answers is not None:
        drawings += answers.drawings(answers_of or [main])
    text = page(
        "report.html.j2",
        **own,
        title=title,
        main=main,
        reference=reference,
        head=report_of(first).head if first else None,
        blocks=blocks,
        figures={name: (inline(one.svg), one.name, one.caption) for name, one in figures.items()},
        illustrations=[report.section for report in illustrations if report.section],
        fusion=shown(plots.fusion_heat_map(fusion)) if fusion else None,
        validated=bool(validated),
        training=shown(plots.training_curves(losses, validated)) if losses else None,
        roles=shown(plots.head_role_map(role_table)) if role_table else None,
        role_source=_role_source(found, role_table),
        other_tokens_read=_other_tokens_read(found),
        answers=answers,
        timings=[(str(item["step"]), float(item["seconds"])) for item in timings],
        notes=[str(note) for note in notes],
        provenance=_provenance(found),
        settings={method: _settings(runs) for method, runs in by_method.items()},
        data_sets=[
            (
                data_set_title(runs[0]),
                [str(name) for name in part_of(runs[0], "dataset").get("classes") or ()],
            )
            for runs in grouped(found, data_set).values()
        ],
    )
    return MadeReport(text, tuple(drawings))


def role_table_of(records: Sequence[Record]) -> Mapping[str, Any] | None:
    """The role table of the records' unmodified runs, if they have one."""
    tables = ((record.get("roles") or {}).get("table") for record in records if not record.get("variant"))
    return next((table for table in tables if table), None)


def _main(by_method: Mapping[str, Sequence[Record]]) -> str:
    """The method that the report is about: the first with fusion weights that is not an ablation, or the
    last.
    """
    plain = [method for method, runs in by_method.items() if not runs[0].get("variant")]
    fused = [method for method in plain if any(run.get("fusion_weights") for run in by_method[method])]
    others = [method for method in plain or by_method if method != FROZEN]
    return (fused or others[-1:] or list(by_method))[0]


def _reference(by_method: Mapping[str, Sequence[Record]]) -> str | None:
    return FROZEN if FROZEN in by_method else None


def _role_source(records: Sequence[Record], role_table: Mapping[str, Any] | None) -> str:
    found = distinct((record.get("roles") or {}).get("source") for record in records)
    sources = [(role_table or {}).get("source"), *found]
    return str(next((source for source in sources if source), "not recorded"))


def _other_tokens_read(records: Sequence[Record]) -> str:
    """The clauses for the mask forms that runs used."""
    settings = [record.get("settings") or {} for record in records]
    forms = distinct(one["core_mask"] for one in settings if one.get("core_mask") in OTHER_TOKENS_READ)
    return "".join(OTHER_TOKENS_READ[form] for form in forms or ["exclusive"])


def _provenance(records: Sequence[Record]) -> list[tuple[str, str]]:
    weights = part_of(records[0], "weights")
    rows = [
        ("Model", str(weights.get("model"))),
        ("Weights", str(weights.get("pretrained"))),
        ("SHA-256 of the weights", str(weights["sha256"])),
        ("Seeds", ", ".join(str(seed) for seed in distinct(record.get("seed") for record in records))),
    ]
    keys = distinct(key for record in records for key in record.get("environment") or {})
    for key in keys:
        values = distinct((record.get("environment") or {}).get(key) for record in records)
        rows.append((str(key).replace("_", " "), _values(values)))
    return rows


def _settings(runs: Sequence[Record]) -> list[tuple[str, str]]:
    """A method's settings, with its number of trained parameters and the duration of a run."""
    rows = []
    for key in distinct(key for run in runs for key in run.get("settings") or {}):
        rows.append((str(key), _values(distinct((run.get("settings") or {}).get(key) for run in runs))))
    if parameters := distinct(run.get("trainable_parameters") for run in runs):
        rows.append(("trainable parameters", _values(parameters)))
    for part in ("train", "test"):
        spent = [(run.get("seconds") or {}).get(part) for run in runs]
        if known := [float(seconds) for seconds in spent if seconds]:
            rows.append((f"seconds per run, {part}", f"{sum(known) / len(known):.1f}"))
    return rows


def _values(values: Sequence[Any]) -> str:
    return " | ".join(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for value in values
    )


def page(template: str, **material: Any) -> str:
    """Render a template of the package; a name that the template uses but is not given is an error."""
    environment = Environment(
        loader=PackageLoader("dear.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline"] = inline
    return environment.get_template(template).render(**material)


def write_whole(path: Path, text: str) -> Path:
    """Write a text atomically. Raises OutputError."""
    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OutputError(
            f"cannot write the report to {path}: {error.strerror or error}; choose another place"
        ) from error
    return path
