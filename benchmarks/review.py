"""How well wrong labels and images of unknown classes are found, on labelled images of which some labels were
flipped or some classes left out: dear's review against the library cleanlab on 5-fold logistic regression and
on zero-shot probabilities, dear's evidence against the largest probability of both.

    pip install cleanlab
    python benchmarks/review.py --data mixed-paints,worn-fabrics --features features.pt
    python benchmarks/review.py --model lite --data caltech101

The features of each data set are computed once and kept in ``--features``. Prints means over data sets and
seeds in percent, with 95% intervals over data sets and seeds.
"""

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from measure import cases, readouts, study_parser
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor

from dear.data.fewshot import pick_shots
from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.fitting import Examples, fit
from dear.review.known import fit_known_classes
from dear.review.labels import score_labels
from dear.review.rows import REFUSED_SHARE
from dear.training.seeding import generator

FLIPPED = 0.1
SHARPNESS = 10.0
"""On unit features before logistic regression (C = 10)."""

Rows = defaultdict[str, list[float]]


def main() -> None:
    made = study_parser(__doc__, "16,8")
    made.add_argument("--features", type=Path)
    options = made.parse_args()
    rows = Rows(list)
    for name, known in readouts(options):
        for shots, seed in cases(options):
            measure_labels(known, shots, seed, rows)
            measure_unknown(known, shots, seed, rows)
        print(name, flush=True)
    for title, values in sorted(rows.items()):
        numbers = torch.tensor(values, dtype=torch.float64)
        interval = 1.96 * numbers.std() / len(numbers) ** 0.5
        print(f"{numbers.mean():6.1f} ± {interval:4.1f}  {title}")


def measure_labels(data: dict[str, Any], shots: int, seed: int, rows: Rows) -> None:
    """Average precision of flipped labels, and what is named of them."""
    from cleanlab.filter import find_label_issues  # type: ignore[import-not-found]
    from cleanlab.rank import get_label_quality_scores  # type: ignore[import-not-found]

    frozen, groups, labels = data["train"]
    picked = pick_shots(labels, shots, seed)
    frozen, groups, true, text = frozen[picked], groups[picked], labels[picked], data["text"]
    draw, classes = generator(seed, "flipped"), len(text)
    flipped = torch.zeros(len(true), dtype=torch.bool)
    flipped[torch.randperm(len(true), generator=draw)[: int(FLIPPED * len(true))]] = True
    shift = torch.randint(1, classes, (len(true),), generator=draw)
    given = torch.where(flipped, (true + shift) % classes, true)

    def named(title: str, wrong: Tensor) -> None:
        rows[f"{shots:2d} images, named by {title}: precision"].append(
            100 * float((wrong & flipped).sum() / wrong.sum().clamp(min=1))
        )
        rows[f"{shots:2d} images, named by {title}: recall"].append(
            100 * float(wrong[flipped].double().mean())
        )

    def score(given: Tensor) -> Tensor:
        fitted = fit(Examples(frozen, given, text), groups, data["carried"], DearPlusSettings())
        return fitted.left_out[2]

    found = score_labels(score(given), given)
    rows[f"{shots:2d} images, wrong labels: dear review"].append(
        100 * average_precision_score(flipped, found.probability)
    )
    named("dear review", found.looks_wrong)
    clean = score_labels(score(true), true).looks_wrong
    rows[f"{shots:2d} images, none wrong: named by dear review"].append(100 * float(clean.double().mean()))
    points = SHARPNESS * frozen[:, 0].numpy()
    regression = LogisticRegression(max_iter=500, C=10.0)
    folds = cross_val_predict(regression, points, given.numpy(), cv=5, method="predict_proba")
    clean_folds = cross_val_predict(regression, points, true.numpy(), cv=5, method="predict_proba")
    wrong = torch.from_numpy(find_label_issues(true.numpy(), clean_folds))
    rows[f"{shots:2d} images, none wrong: named by cleanlab, logistic"].append(
        100 * float(wrong.double().mean())
    )
    zero_shot = (frozen[:, 0] @ text.T).softmax(dim=1).numpy()
    for title, probabilities in {"logistic": folds, "zero-shot": zero_shot}.items():
        quality = get_label_quality_scores(given.numpy(), probabilities)
        rows[f"{shots:2d} images, wrong labels: cleanlab, {title}"].append(
            100 * average_precision_score(flipped, -quality)
        )
        named(f"cleanlab, {title}", torch.from_numpy(find_label_issues(given.numpy(), probabilities)))


def measure_unknown(data: dict[str, Any], shots: int, seed: int, rows: Rows) -> None:
    """AUROC of test images of every other class against those of the others, which have no training images,
    and how many of both are refused.
    """
    frozen, _, labels = data["train"]
    known = torch.arange(0, len(data["text"]), 2)
    picked = pick_shots(labels, shots, seed)
    picked = picked[labels[picked] % 2 == 0]
    points, given = frozen[picked, 0], labels[picked] // 2
    tested, is_known = data["test"][0][:, 0], data["test"][2] % 2 == 0
    found = fit_known_classes(points, given, len(known))
    assert found is not None
    evidence = found.evidence(tested).max(dim=1).values
    regression = LogisticRegression(max_iter=500, C=10.0).fit(SHARPNESS * points.numpy(), given.numpy())
    by_regression = regression.predict_proba(SHARPNESS * tested.numpy()).max(axis=1)
    by_names = (tested @ data["text"][known].T).softmax(dim=1).max(dim=1).values
    for title, sure in {"evidence": evidence, "logistic": by_regression, "zero-shot": by_names}.items():
        rows[f"{shots:2d} images, unknown classes: {title}"].append(100 * roc_auc_score(is_known, sure))
    refused = (evidence < found.limit(REFUSED_SHARE)).double()
    rows[f"{shots:2d} images, refused of known classes"].append(100 * float(refused[is_known].mean()))
    rows[f"{shots:2d} images, let through of unknown classes"].append(
        100 * float(1 - refused[~is_known].mean())
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main()
