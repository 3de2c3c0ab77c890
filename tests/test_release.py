"""What a release is made from agrees with itself: versions, bounds, workflows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import kova_rl

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_version_is_the_newest_of_the_changelog_and_the_citation() -> None:
    newest = re.findall(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert newest == (kova_rl.__version__, citation["date-released"])
    assert citation["version"] == kova_rl.__version__
    assert "2002.07171" in citation["references"][0]["url"]


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / ".github" / "oldest.txt").read_text().splitlines()
    oldest = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["optional-dependencies"]
    declared = [
        *PROJECT["dependencies"],
        *(line for name in extras if name not in ("docs", "dev") for line in extras[name]),
    ]
    bounds: dict[str, str] = {}
    for requirement in map(Requirement, declared):
        (least,) = (part.version for part in requirement.specifier if part.operator == ">=")
        bounds[requirement.name] = least
    assert set(oldest) == set(bounds)
    assert all(
        version == bounds[name] or version.startswith(f"{bounds[name]}.") for name, version in oldest.items()
    )


def test_pins_hold_what_is_declared() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:])
    versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    for extra, lines in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items():
        for requirement in map(Requirement, lines):
            if requirement.name != "kova-rl":
                assert versions[requirement.name.lower()] in requirement.specifier, (extra, requirement)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_what_there_is(path: Path) -> None:
    text = path.read_text()
    assert yaml.safe_load(text)["jobs"]
    named = re.findall(
        r"(?<![\w/])(tests/\w+\.py|\.github/[\w/.]+|\.ci/\w+|constraints\.txt|src/[\w/]+\.py)", text
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing, f"{path.name} names {missing}"
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= set(targets)
