"""The versions of the code that rows were measured with: which commit has a fingerprint, and its date."""

import csv
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import PurePosixPath

from benchmarks.study.runs import FOLDER, ROOT, Runs

FILE = FOLDER / "versions.csv"
MOST = 300
"""Commits that are searched, the newest first."""


@cache
def dates() -> dict[str, str]:
    """The day of each version, by fingerprint."""
    return {row["code"]: row["date"] for row in rows()}


def rows() -> list[dict[str, str]]:
    """The known versions, the newest first."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def version_of(runs: Runs) -> str:
    """The day of the oldest version among some rows; "unknown" for code that was never committed."""
    return min(dates().get(code, "unknown") for code in {*runs.code})


def add_versions(codes: Iterable[str]) -> None:
    """Store the commits of fingerprints that are not known yet; those that no commit has are left out."""
    wanted, found = {*codes} - {*dates()}, list[dict[str, str]]()
    if not wanted:
        return
    for line in (
        _git("log", f"--max-count={MOST}", "--format=%h %cs", "--all", "--", "src/dear").decode().splitlines()
    ):
        commit, date = line.split()
        if (code := fingerprint(commit)) in wanted:
            found.append({"code": code, "commit": commit, "date": date})
            wanted.remove(code)
        if not wanted:
            break
    known = sorted([*rows(), *found], key=lambda row: row["date"], reverse=True)
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["code", "commit", "date"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(known)
    dates.cache_clear()


def fingerprint(commit: str) -> str:
    """What `dear.evaluation.environment.code_version` is of a commit."""
    digest, package = hashlib.sha256(), PurePosixPath("src/dear")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "src/dear"))) as archive:
        members = {PurePosixPath(m.name).relative_to(package): m for m in archive if m.name.endswith(".py")}
        for path, member in sorted(members.items()):
            content = archive.extractfile(member)
            assert content is not None
            digest.update(path.as_posix().encode() + b"\0" + content.read())
    return digest.hexdigest()[:12]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
