"""The documentation: its code runs, its links lead somewhere, its reference has every public name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]
ELSEWHERE = {
    "stable-baselines3.md": "tests/test_examples.py runs each block by itself",
    "mazes.md": "tests/test_package.py runs each block by itself",
    "lab.md": "its one block loads a model that a reader has trained",
}
"""Pages whose code is not run here, and why."""
SLOW = {"policy-evaluation.md": "walks, rolls out and compares with many seeds: minutes"}
NEEDS = {"torchrl.md": "torchrl", "skrl.md": "skrl"}


def blocks(path: Path) -> list[str]:
    """A page's Python, in order; ``<!-- setup`` holds what a reader need not see: names, and checks."""
    return [
        a or b
        for a, b in re.findall(r"^```python\n(.*?)^```|^<!-- setup\n(.*?)^-->", path.read_text(), re.M | re.S)
    ]


def pages() -> list[object]:
    found = [path for path in sorted(DOCS.rglob("*.md")) if blocks(path) and path.name not in ELSEWHERE]
    slow = pytest.mark.slow
    return [pytest.param(p, id=p.stem, marks=[slow] if p.name in SLOW else []) for p in found]


@pytest.mark.parametrize("path", pages())
def test_the_code_of_a_page_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if needed := NEEDS.get(path.name):
        pytest.importorskip(needed, reason=f"this page needs {needed}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for number, code in enumerate(blocks(path), 1):
        exec(compile(code, f"{path.name}: block {number}", "exec"), names)


def test_pages_that_are_run_elsewhere_are_there() -> None:
    assert all(blocks(DOCS / name) for name in ELSEWHERE)


@pytest.mark.parametrize("path", [ROOT / "CONTRIBUTING.md", DOCS / "house.md"], ids=lambda path: path.name)
def test_files_that_contributors_are_sent_to_are_there(path: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+)`", path.read_text())
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def anchors(path: Path) -> set[str]:
    """What ``#...`` may point to in a page, by GitHub's rule."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*FRONT, *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^]]+\]: (\S+)$", text, re.M)
    for link in links:
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{path.name} links to {link}"
        assert not anchor or anchor in anchors(there), (
            f"{path.name} links to {link}, which has no such heading"
        )
    used = set(re.findall(r"\]\[([\w-]+)\]", text))
    assert used <= set(re.findall(r"^\[([^]]+)\]:", text, re.M))


PUBLIC = [
    "",
    "covariance",
    "evolution",
    "observation",
    "targets",
    "head",
    "baselines",
    "sb3",
    "envs",
    "agents",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_every_public_name(name: str) -> None:
    module = importlib.import_module(f"kova_rl.{name}".rstrip("."))
    reference = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"\.\. (?:auto|py:)\w+:: ([\w.]+)", reference))
    ends = {full.rsplit(".", 1)[-1] for full in named}
    whole = ":members:\n   :ignore-module-all:" in reference and name == "targets"
    missing = {public for public in module.__all__ if public not in ends and public != "__version__"}
    assert whole or not missing, f"docs/api has no {', '.join(sorted(missing))}"


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120
    assert next(i for i, line in enumerate(lines) if "pip install" in line) < 12
