"""Numbers of runs, for comparisons."""

from typing import Any


def numbers(record: dict[str, Any]) -> Any:
    epochs = [{k: v for k, v in e.items() if k != "seconds"} for e in record["train"]["epochs"]]
    return [epochs, record["results"], record["fusion_weights"], record["fewshot"]]
