"""Whatever text is a class name or a template: it is refused in one line, or shown as text."""

import csv
import io
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from dear.adapters.bundle import require_distinct_names
from dear.adapters.predictor import Predictor
from dear.adapters.results import write_predictions
from dear.cli.output import PrintableConsole
from dear.cli.predict import Predicted, render
from dear.data.settings import checked_templates
from dear.errors import DearError
from dear.text import CONTROLS
from tests.conftest import small_clip_of
from tests.helpers.bundles import small_predictor
from tests.helpers.server import picture

CONTROL = frozenset(map(chr, CONTROLS)) - {"\n"}
TEXT = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from("<>&\"'`|=+-@[]{}()\\\x1b\x00\r\n\u202e\u0301 a_"), max_size=30),
    st.text(st.sampled_from("ab é"), min_size=900, max_size=1100),
    st.sampled_from(
        ["<script>alert(1)</script>", "=1+1", "\x1b[2J", "{}", "&amp;amp;amp;", "\ud800", "[bold]"]
    ),
)


@cache
def predictor() -> Predictor:
    return small_predictor(small_clip_of())


def printed(result: Predicted) -> str:
    stream = io.StringIO()
    render(result, PrintableConsole(file=stream, width=160))
    return stream.getvalue()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(names=st.lists(TEXT, min_size=1, max_size=3))
def test_a_class_name_is_refused_or_shown_as_text(names: list[str]) -> None:
    refusal = ""
    try:
        classes = require_distinct_names(names)
        predictions = predictor().predict([picture()], top=3, classes=classes)
    except DearError as error:
        refusal = str(error)
    assert not CONTROL & {*refusal}
    assert "\n" not in refusal
    if refusal:
        return
    assert sorted(candidate.name for candidate in predictions[0].top) == sorted(classes)
    text = printed(Predicted(predictions, [], {}))
    assert not CONTROL & {*text}
    assert len(text.splitlines()) <= 3 + 2 * len(classes) + 8  # no name makes a line of its own
    with TemporaryDirectory() as folder:
        table = write_predictions(Path(folder) / "p.csv", predictions).out
        rows = [*csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines())]
    for row in rows:
        assert row["class"][:1] not in {*"=+-@\t"}
        assert not CONTROL - {"\t"} & {*row["class"]}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(template=TEXT | TEXT.map("{{}} {}".format) | TEXT.map("{}{{}}".format))
def test_a_template_is_refused_or_makes_a_prompt(template: str) -> None:
    method = predictor().method
    refusal = ""
    try:
        method.set_classes(["red", "sea"], checked_templates([template], "templates"))
    except DearError as error:
        refusal = str(error)
    assert not CONTROL & {*refusal}
    assert refusal or all(feature.isfinite().all() for feature in method.text_features())
