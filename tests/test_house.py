"""The house: which package may know which, how long files are, and what the repository keeps of results."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from statistics import median

import pytest

from kova_rl import cli
from kova_rl.lab.pack import FILE, found

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kova_rl"


def room(module: str) -> str:
    """The package that a module of ours counts to: below ``lab`` its folder there, else the first."""
    parts = module.split(".")[1:]
    depth = 2 if parts[:1] == ["lab"] else 1
    return ".".join(parts[:depth])


def imported(path: Path) -> set[str]:
    """The modules that a file imports when it is imported itself: not those within functions."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _only_typing(node):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name for name in inner if _is_module(name)} or {node.module}
        pending.extend(ast.iter_child_nodes(node))
    return {name for name in names if name.startswith("kova_rl.")}


def _only_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def rooms() -> dict[str, set[str]]:
    """For each package and top-level module, those that it imports."""
    graph: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        mine = room(module)
        if mine:
            graph.setdefault(mine, set()).update({room(name) for name in imported(path)} - {mine, ""})
    return graph


def test_no_package_knows_one_that_knows_it() -> None:
    graph, done = rooms(), set[str]()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle of imports: {' -> '.join((*way[way.index(name) :], name))}"
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*way, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
    assert {"lab.run", "lab.backends", "lab.sweep", "lab.report", "lab.commands"} <= done


def test_the_lab_stands_on_the_algorithms_and_not_they_on_it() -> None:
    for name, others in rooms().items():
        if not name.startswith(("lab", "cli")):
            assert not any(other.startswith("lab") for other in others), name


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert not {str(path.relative_to(SOURCE)): n for path, n in lengths.items() if n > 300}
    assert median(n for path, n in lengths.items() if SOURCE / "lab" in path.parents) < 120


def test_the_house_is_drawn_as_it_is() -> None:
    """Every package of the lab is on the page, and nothing that is not there."""
    text = (ROOT / "docs" / "house.md").read_text()
    for path in (SOURCE / "lab").iterdir():
        if path.is_dir() and (path / "__init__.py").exists():
            assert f"{path.name}/" in text, path.name
    for name in re.findall(r"`(lab/[a-z0-9_/]+(?:\.py)?)`", text):
        assert (SOURCE / name).exists(), name


# ---------------------------------------------------------------------- results


def test_results_are_few_and_small() -> None:
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert len(files) <= 100
    assert sum(path.stat().st_size for path in files) <= 6_000_000
    for data in (ROOT / "results").rglob(FILE):
        assert (data.parent / "README.md").exists() or (data.parent.parent / "README.md").exists()


@pytest.mark.parametrize("name", ["fig1", "fig2", "why"])
def test_a_figure_is_drawn_again_from_its_data(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shutil.copy(ROOT / "results" / name / FILE, tmp_path)
    cli.main(["reproduce", name, "--draw", "--out", str(tmp_path)])
    assert (tmp_path / f"{name}.md").read_text() == (ROOT / "results" / name / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("folder", "critics"),
    [("evaluation", "kova-head kova adam ktd gptd gptd-mc lstd"), ("evaluation/more", "kova-head kova lstd")],
)
def test_the_tables_of_policy_evaluation_are_made_again_from_their_data(
    folder: str, critics: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    shutil.copy(ROOT / "results" / folder / FILE, tmp_path)
    cli.main(["evaluate", "--draw", "--critics", *critics.split(), "--out", str(tmp_path)])
    assert (tmp_path / "tables.md").read_text() == (ROOT / "results" / folder / "tables.md").read_text()


def test_the_calibration_is_drawn_again_from_its_data(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shutil.copy(ROOT / "results" / "calibration" / FILE, tmp_path)
    cli.main(["reproduce", "calibration", "--draw", "--out", str(tmp_path)])
    before = ROOT / "results" / "calibration" / "calibration.md"
    assert (tmp_path / "calibration.md").read_text() == before.read_text()
    assert (tmp_path / "calibration.png").exists()


def test_the_study_is_ranked_again_from_its_data(tmp_path: Path) -> None:
    shutil.copy(ROOT / "results" / "study" / FILE, tmp_path)
    cli.main(["study", "--draw", "--out", str(tmp_path)])
    assert (tmp_path / "study.md").read_text() == (ROOT / "results" / "study" / "study.md").read_text()


def test_the_training_runs_are_read_from_their_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(found(ROOT / "results" / "fig3")) == 44
    cli.main(["table", str(ROOT / "results" / "fig3")])
    assert "TRPO: probability of improvement on Adam" in capsys.readouterr().out
