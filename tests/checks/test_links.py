"""A link is followed only where the user gives the path, or where it was seen to stay within its folder.

Each place that asks for ``links`` is listed here, with the reason.
"""

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "dear"
FOLLOWED = {
    # After require_inside, or of the hub's cache, whose files are links.
    "adapters/bundle_config.py": 1, "adapters/bundle_files.py": 1, "backbone/repository.py": 2,
    "backbone/tiny.py": 1, "backbone/tokenizer_file.py": 4, "backbone/weights.py": 1,
    "roles/sentences.py": 6,
    # Images, also those in a folder.
    "data/images/raster.py": 1, "report/run_mistakes.py": 1,
    # The user gives the path, or a recipe below its own folder with links resolved.
    "cli/parsing.py": 1, "cli/predict.py": 1, "data/settings.py": 1,
    "data/sources/listing.py": 1, "data/sources/table.py": 1, "evaluation/recipe.py": 1,
    "methods/atprompt/__init__.py": 1, "methods/tac/__init__.py": 1, "roles/phrases.py": 1,
    "roles/settings.py": 1, "roles/textspan_format.py": 1,
}  # fmt: skip


def test_the_places_where_links_are_followed() -> None:
    found = Counter[str]()
    for file in SOURCE.rglob("*.py"):
        name = file.relative_to(SOURCE).as_posix()
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                # Within the readers and helpers, ``links`` is handed on.
                handed_on = isinstance(keyword.value, ast.Name) and keyword.value.id == "links"
                refused = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                found[name] += keyword.arg == "links" and not (handed_on or refused)
    assert +found == FOLLOWED
