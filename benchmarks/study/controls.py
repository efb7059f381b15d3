"""Write the role tables that those of `dear+` are compared with, and a recipe that runs it with each:
python -m benchmarks.study.controls FOLDER

They are 20 tables with the packaged roles shuffled among the heads, and 10 with roles drawn at random.
"""

import argparse
from pathlib import Path

import yaml

from dear.roles.table import named_table
from dear.roles.variants import draw_roles, shuffle_roles

KINDS = {"shuffled": (shuffle_roles, 20), "random": (draw_roles, 10)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    roles, methods = named_table("discovered"), [{"method": "dear+", "label": "discovered"}]
    for kind, (change, count) in KINDS.items():
        for seed in range(1, count + 1):
            change(roles, seed).save(folder / f"{kind}-{seed}.json")
            methods.append({"method": "dear+", "label": f"{kind} {seed}", "roles": f"{kind}-{seed}.json"})
    recipe = {"protocol": "base-to-novel", "data": "world", "seeds": [1], "out": f"{folder}/runs"}
    text = yaml.safe_dump(recipe | {"methods": methods}, sort_keys=False)
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
