"""`dear data get`: fetch a benchmark, or explain how to get it by hand."""

from pathlib import Path

from rich.console import Console

from dear.data.findings import Fetched


def command(name: str, *, root: Path | None = None) -> Fetched:
    """Download a benchmark into CoOp's layout with torchvision where possible; otherwise say what to do by
    hand.

    Args:
        name: A benchmark's name.
        root: Folder of the benchmarks; the environment variable DEAR_DATA if not given.
    """
    from dear.data.settings import DataSettings
    from dear.data.sources.benchmarks import benchmarks, find_benchmark
    from dear.data.sources.download import fetch
    from dear.errors import SettingsError, UnknownNameError

    benchmark = find_benchmark(name)
    if benchmark is None:
        raise UnknownNameError("benchmark", name, benchmarks())
    place = DataSettings(root=root).data_root()
    if place is None:
        raise SettingsError("no folder to fetch into: give --root or set the environment variable DEAR_DATA.")
    return fetch(benchmark, place)


def render(result: Fetched, console: Console) -> None:
    """Show what was fetched and what is left to do."""
    lines = [f"{result.name} in {result.folder}"]
    lines += [f"fetched: {', '.join(result.fetched)}"] if result.fetched else []
    lines += [f"not fetched: {result.why}"] if result.why else []
    if result.by_hand:
        lines += [f"by hand, into {result.folder}:", *(f"  - {line}" for line in result.by_hand)]
    lines.append(f"then: dear data check {result.name} --root {Path(result.folder).parent}")
    console.print("\n".join(lines), markup=False, soft_wrap=True)
