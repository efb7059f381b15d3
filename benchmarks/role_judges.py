"""Roles discovered from TEXTSPAN files against what others say of the same heads (docs/roles.md).

    python benchmarks/role_judges.py labels SPANS.txt --weights "ViT-B-16 laion2b_s34b_b88k"
    python benchmarks/role_judges.py picks SPANS.txt --weights "ViT-L-14 laion2b_s32b_b82k"
    python benchmarks/role_judges.py printed SPANS.txt
    python benchmarks/role_judges.py rules SPANS.txt ...

labels: a language model's word for each head (CLIP-InterpreT). picks: lists of heads in the code of
Gandelsman et al. and of a fork. printed: the phrases that DeAR's supplement prints, in place of the file's.
rules: each rule of roles against the published roles. The last two are about ViT-B/16 with LAION-2B weights.
The facts are in benchmarks/judges, the files in https://github.com/jnzhao3/clip_text_span (MIT, output_dir).
One JSON line a figure.
"""

import argparse
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize

from dear.backbone.clip import Identity
from dear.errors import DataError, DearError, SettingsError
from dear.reading.plain import read_json
from dear.reading.typed import typed
from dear.roles.build import build_table
from dear.roles.clusters import reduce
from dear.roles.compare import agreement
from dear.roles.packaged import named_table
from dear.roles.phrases import embed_phrases, general_pool
from dear.roles.settings import RoleSettings
from dear.roles.table import Head, RoleTable
from dear.roles.textspan_format import HeadPhrases, in_layers, read_textspan

FACTS = Path(__file__).parent / "judges"
PUBLISHED = "ViT-B-16 laion2b_s34b_b88k"
LAST = 4  # layers that all these judges are about
GRADES = ("name", "kind", "border")
ATTRIBUTES = ("color", "shape", "texture", "object", "location")
TEMPERATURES = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
RULES: tuple[dict[str, Any], ...] = (
    {},
    {"attributes": ATTRIBUTES},
    {"attributes": ATTRIBUTES, "over": "selected"},
    {"cluster": "none"},
    {"rule": "concept"},
    {"rule": "concept", "attributes": ATTRIBUTES},
)
Concepts = Mapping[Head, str]


def facts(name: str) -> dict[str, Any]:
    """The content of a file of benchmarks/judges."""
    return typed(read_json(FACTS / name), dict[str, Any], name)


def concept_of_word(concepts: Mapping[str, Mapping[str, Sequence[str]]], grade: str) -> dict[str, str]:
    """The concept of each label word, from the strictest grade to ``grade``."""
    grades = GRADES[: GRADES.index(grade) + 1]
    return {word: concept for name in grades for concept, words in concepts[name].items() for word in words}


def labelled(words: Mapping[str, Sequence[str]], concept: Mapping[str, str]) -> dict[Head, str]:
    """The concept of each head whose word has one; ``words`` are those of a layer's heads in order."""
    return {
        (int(layer), head): concept[word]
        for layer, of_layer in words.items()
        for head, word in enumerate(of_layer)
        if word in concept
    }


def wilson(agree: int, heads: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% score interval of a share, in percent (Wilson, 1927). It takes heads for independent."""
    share, weight = agree / heads, z * z / heads
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / heads + weight / (4 * heads)) / (1 + weight)
    return 100 * (middle - half), 100 * (middle + half)


def chance(agree: int, picked: int, with_concept: int, heads: int) -> float:
    """The probability that of ``picked`` heads drawn from all at least ``agree`` have the concept
    (hypergeometric).
    """
    ways = sum(
        math.comb(with_concept, hits) * math.comb(heads - with_concept, picked - hits)
        for hits in range(agree, picked + 1)
    )
    return ways / math.comb(heads, picked)


def most_under_quantile(roles: Sequence[str], quantile: float) -> int:
    """The most heads that quantiles of entropy can give their role, whatever the entropies, without ties.

    The lowest part may be core, other-specialized or generalization, the highest is generalization, the rest
    mixed.
    """
    part = math.floor(quantile * (len(roles) - 1)) + 1
    high = min(part, roles.count("generalization"))
    low = min(part, len(roles) - roles.count("mixed") - high)
    return high + low + min(len(roles) - 2 * part, roles.count("mixed"))


def compared(first: Concepts, second: Concepts, heads: Collection[Head] | None = None) -> dict[str, Any]:
    """Agreement on the heads that both have, or on those of them in ``heads``."""
    shared = sorted(head for head in first.keys() & second.keys() if heads is None or head in heads)
    result = agreement([first[head] for head in shared], [second[head] for head in shared])
    low, high = wilson(result.agree, result.heads)
    return {
        "agree": result.agree,
        "heads": result.heads,
        "interval": [round(low), round(high)],
        "kappa": None if result.kappa is None else round(result.kappa, 2),
        "most_frequent": round(result.majority * result.heads),
    }


def soft_concepts(spans: HeadPhrases, temperature: float) -> dict[Head, str]:
    """The dominant concept of each head, where a phrase counts for every concept: softmax of its cosines with
    the concepts' means over ``temperature``, in the space of `dear.roles.clusters.reduce`.
    """
    pool = general_pool()
    texts = list(dict.fromkeys(text for phrases in spans.values() for text in phrases))
    names = sorted({*pool.concepts})
    numbers = torch.tensor([names.index(concept) for concept in pool.concepts])
    embedded = embed_phrases(texts), embed_phrases(pool.phrases)
    rows = torch.from_numpy(reduce(*embedded, numbers, len(names), RoleSettings()))
    named = rows[len(texts) :]
    means = torch.stack([named[numbers == number].mean(dim=0) for number in range(len(names))])
    shares = (rows[: len(texts)] @ normalize(means, dim=1).T / temperature).softmax(dim=1)
    row = {text: number for number, text in enumerate(texts)}
    return {
        head: names[int(shares[[row[text] for text in phrases]].mean(dim=0).argmax())]
        for head, phrases in spans.items()
    }


def read_spans(path: Path) -> HeadPhrases:
    """The heads of the last four layers of a TEXTSPAN file."""
    spans = read_textspan(path)
    last = max(layer for layer, _ in spans)
    return in_layers(spans, range(last - LAST + 1, last + 1))


def spans_of(path: Path, weights: str) -> HeadPhrases:
    """The heads of a file of some weights. Raises DataError if the labels of these weights are of others."""
    spans, words = read_spans(path), facts("interpret_labels.json")["labels"][weights]
    labels = {(int(layer), head) for layer, of_layer in words.items() for head in range(len(of_layer))}
    if spans.keys() != labels:
        raise DataError(
            f"{path} has {len(spans)} heads, the last of layer {max(spans)[0]}; {weights} has {len(labels)}, "
            f"the last of layer {max(labels)[0]}. Name the file's weights with --weights."
        )
    return spans


def table_of(spans: HeadPhrases, **settings: Any) -> RoleTable:
    weights = Identity("of a TEXTSPAN file", "", "")
    return build_table(spans, weights, source="judged", settings=RoleSettings(**settings), plane=False)


def concepts_of(table: RoleTable) -> dict[Head, str]:
    """The dominant concept of each head that has one."""
    return {(role.layer, role.head): role.concept for role in table.heads if role.concept}


def judge_labels(path: Path, weights: str) -> None:
    words = facts("interpret_labels.json")["labels"][weights]
    discovered = concepts_of(table_of(spans_of(path, weights)))
    published = concepts_of(named_table("published"))
    for grade in GRADES:
        labels = labelled(words, concept_of_word(facts("interpret_concepts.json")["concepts"], grade))
        say(words_up_to=grade, ours_and_labels=compared(discovered, labels))
        if weights == PUBLISHED:
            both = labels.keys() & published.keys()
            say(words_up_to=grade, published_and_labels=compared(published, labels))
            say(words_up_to=grade, ours_and_labels_on_these=compared(discovered, labels, both))
            say(words_up_to=grade, ours_and_published_on_these=compared(discovered, published, both))


def judge_picks(path: Path, weights: str) -> None:
    picks = [pick for pick in facts("picked_heads.json")["picks"] if pick["weights"] == weights]
    if not picks:
        raise SettingsError(f"no heads of {weights} are picked: judge these weights by labels.")
    tables = {"ours": concepts_of(table_of(spans_of(path, weights)))}
    if weights == PUBLISHED:
        tables["published"] = concepts_of(named_table("published"))
    heads = len(tables["ours"])
    for pick in picks:
        for name, concepts in tables.items():
            picked = [concepts.get((layer, head)) for layer, head in pick["heads"]]
            agree, owners = picked.count(pick["concept"]), [*concepts.values()].count(pick["concept"])
            low, high = wilson(agree, len(picked))
            say(
                table=name,
                pick=pick["name"],
                by=pick["by"],
                concept=pick["concept"],
                agree=[agree, len(picked)],
                interval=[round(low), round(high)],
                of_all_heads=[owners, heads],
                chance=float(f"{chance(agree, len(picked), owners, heads):.1g}"),
                others=[concept for concept in picked if concept != pick["concept"]],
            )


def judge_printed(path: Path) -> None:
    rows = facts("printed_phrases.json")["heads"]
    printed = {(row["layer"], row["head"]): tuple(row["phrases"]) for row in rows}
    spans, published = spans_of(path, PUBLISHED), concepts_of(named_table("published"))
    in_file = {text for phrases in spans.values() for text in phrases}
    say(
        printed_phrases=sum(map(len, printed.values())),
        in_the_same_head=sum(text in spans[head] for head, texts in printed.items() for text in texts),
        in_any_head=sum(text in in_file for texts in printed.values() for text in texts),
    )
    for phrases, source in ((printed, "printed"), (spans, "file")):
        for cluster in ("none", "hdbscan"):
            table = table_of(phrases, cluster=cluster)
            shares = {(role.layer, role.head): role.share for role in table.heads}
            occurs = sum(concept in shares[head] for head, concept in published.items())
            agree = compared(concepts_of(table), published)
            say(phrases=source, cluster=cluster, concepts=agree, published_concept_occurs=occurs)
        for temperature in TEMPERATURES:
            agree = compared(soft_concepts(phrases, temperature), published)
            say(phrases=source, soft=temperature, concepts=agree)


def judge_rules(paths: Sequence[Path]) -> None:
    published = named_table("published")
    roles = {(role.layer, role.head): role.role for role in published.heads}
    say(
        always_core=[[*roles.values()].count("core"), len(roles)],
        most_under_quantile=most_under_quantile([*roles.values()], RoleSettings().quantile),
    )
    for path in paths:
        spans = spans_of(path, PUBLISHED)
        for settings in RULES:
            try:
                table = table_of(spans, **settings)
            except SettingsError as error:
                say(file=path.name, settings=settings, refused=str(error))
                continue
            given = {(role.layer, role.head): role.role for role in table.heads}
            agree = sum(given[head] == role for head, role in roles.items())
            concepts = compared(concepts_of(table), concepts_of(published))
            say(file=path.name, settings=settings, roles=[agree, len(roles)], concepts=concepts["agree"])


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("judge", choices=("labels", "picks", "printed", "rules"))
    parser.add_argument("spans", type=Path, nargs="+")
    parser.add_argument("--weights", default=PUBLISHED, choices=[*facts("interpret_labels.json")["labels"]])
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        if options.judge == "rules":
            judge_rules(options.spans)
        for path in options.spans if options.judge != "rules" else ():
            if options.judge == "printed":
                judge_printed(path)
            else:
                (judge_labels if options.judge == "labels" else judge_picks)(path, options.weights)
    except DearError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
