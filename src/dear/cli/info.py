"""`dear info`: what this installation has, or how a bundle was made."""

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dear import __version__
from dear.adapters.wording import list_facts
from dear.cli.options import MethodClasses
from dear.cli.output import PrintableConsole, table
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.records import may_be_record, read_record
from dear.reading.files import expanded

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle

PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy")


def command(bundle: str | None = None, *, method: MethodClasses = None) -> dict[str, Any]:
    """Show versions, devices and threads, for a bug report; or how a bundle or a run was made.

    Args:
        bundle: Folder of a bundle, or OWNER/NAME on the hub; or the record of a run with its weights (.json).
    """
    del method  # only imported
    if bundle is not None:
        from dear.adapters.bundle_config import check_bundle

        check_bundle(bundle)
        from dear.adapters.saved_run import load_bundle

        facts = _of_bundle(load_bundle(bundle))
        return facts | _measured(read_record(expanded(bundle))) if may_be_record(expanded(bundle)) else facts
    import torch

    gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return {
        "dear": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version(name) for name in PACKAGES},
        "devices": ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])],
        "threads": torch.get_num_threads(),
    }


def _measured(record: dict[str, Any]) -> dict[str, Any]:
    """What a run was tested by, in place of the verdict of a bundle."""
    parts = PROTOCOLS[record["protocol"]].scored
    accuracies = {part: f"{100 * record['results'][part]['accuracy']:.1f}%" for part in parts}
    return {"verdict": [], "protocol": record["protocol"], "accuracy": accuracies}


def _of_bundle(bundle: "Bundle") -> dict[str, Any]:
    from dear.adapters.identity import short_identity

    settings = bundle.config()["settings"]
    return {
        "bundle": bundle.source,
        "identity": short_identity(bundle),
        "method": bundle.method,
        "backbone": str(bundle.weights),
        "settings": settings,
        "roles": bundle.roles and bundle.roles.source,
        "classes": bundle.classes,
        "templates": bundle.templates,
        "parameters": bundle.parameters,
        "temperature": bundle.temperature,
        "refuse": bundle.refuse,
        "training": bundle.training,
        "scores": bundle.scores,
        "verdict": bundle.verdict.splitlines(),
    }


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the information as a table; of a bundle also what its measurements mean."""
    shown = {name: value for name, value in result.items() if value is not None}
    for name in {"settings", "packages", "accuracy"} & {*shown}:
        shown[name] = ", ".join(f"{key} {value}" for key, value in shown[name].items())
    for name in {"devices", "classes", "templates"} & {*shown}:
        shown[name] = ", ".join(shown[name])
    if "bundle" in shown:
        shown["classes"] = f"{len(result['classes'])}: {shown['classes']}"
        shown |= list_facts(result["training"])
    lines = shown.pop("verdict", [])
    if command := shown.pop("command", ""):
        lines = [*lines, f"made by: {command}"]  # a table would break it
    for name in ("scores", "training"):
        shown.pop(name, None)
    console.print(table(None, ("what", "value"), shown.items()))
    console.say(*lines)
