"""What images without labels add to DeAR+, and to TransCLIP, on test images.

    python benchmarks/unlabelled.py --data mixed-paints,worn-fabrics --shots 2,8 --seeds 1,2,3
    python benchmarks/unlabelled.py --model lite --data photographs/ --strangers 0.3
    python benchmarks/unlabelled.py --data mixed-paints --shots 2 --rounds 4

The images without labels are up to 48 more training images a class. With ``--strangers`` that share of
classes has no name, no labelled images and no test images, but its images are among those without labels.
Writes a line of JSON for each run, then means over data sets with their 95% intervals. ``--features FILE``
keeps what was read of the images. With ``--rounds`` images are labelled instead: in each round as many as
there are classes, those that `choose_next` takes or random ones.

TransCLIP (Zanella et al., NeurIPS 2024), written from the paper: a Gaussian mixture of one diagonal
covariance over the class feature, affinities to the three nearest images, a penalty of weight 0.5 on leaving
the text's labels, and a term for labelled images whose weight is the best of four on check images. It sees
the test images among those without labels, as published.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from measure import cases, readouts, study_parser
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from dear.data.fewshot import pick_shots
from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.fitting import Examples, Fit, by_attribute, corrected, fit
from dear.methods.dear_plus.unlabelled import fit_with_others
from dear.review.alike import choose_next

AT_HAND = 48
GAMMAS, KL_WEIGHT, NEIGHBORS, ROUNDS, INNER = (0.002, 0.01, 0.02, 0.2), 0.5, 3, 10, 5
Readouts = tuple[
    Float[Tensor, "item view embed"], Float[Tensor, "item view attribute embed"], Int[Tensor, "item"]
]


def main() -> None:
    parser = study_parser(__doc__, "2,4,8")
    parser.add_argument("--strangers", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--features", type=Path)
    options = parser.parse_args()
    rows = defaultdict[int, list[dict[str, Any]]](list)
    for name, known in readouts(options):
        for shots, seed in cases(options):
            if options.rounds:
                row = label_more(known, shots, seed, options.rounds)
            else:
                row = measure(known, shots, seed, options.strangers)
            if row:
                print(json.dumps({"data": name, "shots": shots, "seed": seed, **row}), flush=True)
                rows[shots].append({"data": name, **row})
    for shots, of_shots in rows.items():
        print(f"{shots} images: {summarize(of_shots)}")


def measure(readouts: dict[str, Any], shots: int, seed: int, strangers: float) -> dict[str, Any]:
    """Accuracies on test images in percent; empty if a class has no more images than shots."""
    frozen, groups, labels = readouts["train"]
    classes = len(readouts["text"]) - round(strangers * len(readouts["text"]))
    text, counts = readouts["text"][:classes], torch.bincount(labels)
    if shots >= int(counts.min()):
        return {}
    picked = pick_shots(labels, shots, seed)
    is_free = torch.ones_like(labels, dtype=torch.bool)
    is_free[picked] = False
    free = is_free.nonzero().flatten()
    others = torch.cat([free[labels[free] == label][:AT_HAND] for label in range(len(counts))])
    picked = picked[labels[picked] < classes]
    examples, settings = Examples(frozen[picked], labels[picked], text), DearPlusSettings()
    carried = readouts["carried"]
    plain = fit(examples, groups[picked], carried, settings)
    unlabelled = frozen[others, 0], groups[others, 0]
    full, gain = fit_with_others(plain, examples, groups[picked], unlabelled, carried, settings)
    tested = {part: keep_known(readouts[part], classes) for part in ("val", "test") if part in readouts}
    queries = torch.cat([unlabelled[0], tested["test"][0][:, 0]])
    peers = {}
    for gamma in GAMMAS:
        mixture = transclip(frozen[picked, 0], labels[picked], queries, text, gamma)
        of_check = tested.get("val", tested["test"])
        check = share(predict(mixture, of_check[0][:, 0], text), of_check[2])
        peers[gamma] = check, share(mixture[2][len(others) :], tested["test"][2])
    return {
        "dear+": share(score(plain, tested["test"], text), tested["test"][2]),
        "with others": share(score(full, tested["test"], text), tested["test"][2]),
        "transclip": max(peers.values())[1],
        "weight": gain.weight,
        "left-out loss": [round(gain.before, 4), round(gain.after, 4)],
    }


def label_more(readouts: dict[str, Any], shots: int, seed: int, rounds: int) -> dict[str, Any]:
    """Accuracies after some rounds in which as many images as there are classes are labelled, those suggested
    or random ones, in percent.
    """
    frozen, groups, labels = readouts["train"]
    text, draw = readouts["text"], torch.Generator().manual_seed(seed)
    first = pick_shots(labels, shots, seed)
    fitted = fit_to(readouts, first)
    row = {"dear+": share(score(fitted, readouts["test"], text), readouts["test"][2])}
    for name in ("suggested", "random"):
        picked, current = first, fitted
        for _ in range(rounds):
            is_free = torch.ones_like(labels, dtype=torch.bool)
            is_free[picked] = False
            rest = is_free.nonzero().flatten()
            if name == "suggested":
                scores = score(current, (frozen[rest], groups[rest], labels[rest]), text)
                features = corrected(frozen[rest, 0], current.correction)
                chosen = choose_next(scores.softmax(dim=1), features, len(text))
            else:
                chosen = torch.randperm(len(rest), generator=draw)[: len(text)]
            picked = torch.cat([picked, rest[chosen]])
            current = fit_to(readouts, picked)
        row[name] = share(score(current, readouts["test"], text), readouts["test"][2])
    return row


def fit_to(readouts: dict[str, Any], picked: Int[Tensor, "pick"]) -> Fit:
    frozen, groups, labels = readouts["train"]
    examples = Examples(frozen[picked], labels[picked], readouts["text"])
    return fit(examples, groups[picked], readouts["carried"], DearPlusSettings())


def keep_known(readouts: Readouts, classes: int) -> Readouts:
    frozen, groups, labels = readouts
    return frozen[labels < classes], groups[labels < classes], labels[labels < classes]


def share(scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> float:
    return round(100 * float((scores.argmax(dim=1) == labels).double().mean()), 3)


def score(fitted: Fit, readouts: Readouts, text: Float[Tensor, "class embed"]) -> Float[Tensor, "item class"]:
    """The scores of first views, where all classes have evidence (`DearPlus.logits`)."""
    frozen, groups, _ = readouts
    terms = [corrected(frozen[:, 0], fitted.correction) @ text.T]
    features = by_attribute(groups[:, 0], fitted.rest)
    for at in range(len(features)):
        whitened = (features[at] - fitted.centre[at]) @ fitted.whitening[at]
        means = fitted.means[:, at]
        terms.append(whitened @ means.T - means.square().sum(dim=1) / 2)  # the rest is the same for all
    return torch.stack(terms, dim=2) @ fitted.strengths[0]


def transclip(
    labelled: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    queries: Float[Tensor, "query embed"],
    text: Float[Tensor, "class embed"],
    gamma: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and the assignments of the queries, by block majorize-minimize."""
    classes, embed = text.shape
    given = one_hot(labels, classes).to(text) * gamma / len(labels)
    prior = KL_WEIGHT * (queries @ text.T).log_softmax(dim=1)
    affinity = (queries @ queries.T).fill_diagonal_(-1)
    kept = torch.zeros_like(affinity).scatter_(1, affinity.topk(NEIGHBORS, dim=1).indices, 1)
    affinity = affinity.clamp(min=0) * kept
    assigned = (queries @ text.T).softmax(dim=1)
    means = normalize(given.T @ labelled, dim=1)
    variances = text.new_full((embed,), 1 / embed)
    for _ in range(ROUNDS):
        likelihood = log_likelihood(queries, means, variances)
        for _ in range(INNER):
            assigned = (likelihood + affinity @ assigned + prior).softmax(dim=1)
        weights = torch.cat([given, assigned / len(queries)])
        points = torch.cat([labelled, queries])
        means = normalize(weights.T @ points, dim=1)
        squared = weights.T @ points.square() - 2 * means * (weights.T @ points)
        squared = squared + means.square() * weights.sum(dim=0)[:, None]
        variances = squared.sum(dim=0) / weights.sum()
    return means, variances, assigned


def log_likelihood(points: Tensor, means: Tensor, variances: Tensor) -> Float[Tensor, "point class"]:
    return -torch.cdist(points / variances.sqrt(), means / variances.sqrt()).square() / 2


def predict(mixture: tuple[Tensor, Tensor, Tensor], points: Tensor, text: Tensor) -> Tensor:
    """The scores of images that are not among the queries, without affinities."""
    return log_likelihood(points, *mixture[:2]) + KL_WEIGHT * (points @ text.T)


def summarize(rows: list[dict[str, Any]]) -> str:
    """Means over runs, and gains over dear+ with intervals over the data sets' means."""
    parts = []
    for name in (name for name, value in rows[0].items() if isinstance(value, float) and name != "weight"):
        by_data = defaultdict[str, list[float]](list)
        for row in rows:
            by_data[row["data"]].append(row[name] - row["dear+"])
        of_data = torch.tensor([sum(gains) / len(gains) for gains in by_data.values()])
        mean = sum(row[name] for row in rows) / len(rows)
        width = 1.96 * float(of_data.std(correction=min(1, len(of_data) - 1))) / len(of_data) ** 0.5
        least = min(row[name] - row["dear+"] for row in rows)
        parts.append(
            f"{name} {mean:.1f} ({float(of_data.mean()):+.1f} ± {width:.1f}, data sets from "
            f"{float(of_data.min()):+.1f}, runs from {least:+.1f})"
        )
    used = sum(row.get("weight", 0) > 0 for row in rows)
    return f"{', '.join(parts)}; others used in {used} of {len(rows)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
