"""How the arithmetic of a training step grows with classes, image size and backbone: counted, not run.

    python benchmarks/growth.py --out benchmarks/results/growth.json

Batch 16, the paper's settings, prompts of nine tokens, of which the first five are the same in all.
DeAR's span is the last third of both towers.
"""

import argparse
import json
from pathlib import Path

from arithmetic import Step, Tower, naive_step, teacher, training_step, trunk
from table import table

PROMPT, SHARED = 9, 5  # "a photo of a NAME." with start and end
BACKBONES = {
    # image side, patch, width, layers, text width, embedding; the text tower has 12 layers
    "ViT-B-32": (224, 32, 768, 12, 512, 512),
    "ViT-B-16": (224, 16, 768, 12, 512, 512),
    "ViT-L-14": (224, 14, 1024, 24, 768, 768),
    "ViT-L-14-336": (336, 14, 1024, 24, 768, 768),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, nargs="+", default=[50, 500, 1000, 10_000])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name, (side, patch, width, layers, text_width, embed) in BACKBONES.items():
        for classes in options.classes:
            image = Tower(width, layers, layers // 3, embed)
            text = Tower(text_width, 12, 4, embed)
            tokens = (side // patch) ** 2 + 1
            step = Step(
                image, text, options.batch, tokens, 3 * patch**2, [PROMPT] * classes, 5, shared=SHARED
            )
            least, usual = training_step(step), naive_step(step)
            rows.append(
                {
                    "backbone": name,
                    "classes": classes,
                    "naive GFLOP": usual / 1e9,
                    "ours GFLOP": least["all"] / 1e9,
                    "of these trunk": trunk(step) / 1e9,
                    "of these teacher": teacher(step) / 1e9,
                    "view cache GFLOP": least["cached"] / 1e9,
                    "ours allows": usual / least["all"],
                    "view cache allows": usual / least["cached"],
                }
            )
    result = {"benchmark": "growth", "settings": {"batch": options.batch, "prompt": PROMPT}, "rows": rows}
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
