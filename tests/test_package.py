"""The package as a user meets it: README, documentation, command line, layers."""

from __future__ import annotations

import ast
import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from benchmarks import accuracy, speed
from benchmarks.timing import interleaved

import kova_rl
from kova_rl import Kova, cli, covariance, evolution, observation
from kova_rl.filter.compatibility import limit
from tests import members

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kova_rl"


def code_blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.S)


@pytest.mark.parametrize(("index", "count"), [(0, 64), (1, 1)])
def test_the_readmes_examples_run_as_they_stand(index: int, count: int) -> None:
    examples = code_blocks(ROOT / "README.md", "python")
    assert len(examples) == 2
    names: dict[str, object] = {}
    exec(examples[index], names)
    belief = names["belief"]
    assert isinstance(belief, kova_rl.Belief)
    assert belief.std.shape == (count,)


def test_the_readmes_commands_are_in_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    named = re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text())
    assert named
    assert set(named) <= set(targets)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_runs_that_the_documents_show_are_there() -> None:
    from kova_rl.lab.figures.beliefs import read

    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    shown = [words for text in texts for words in re.findall(r"kova show (maze\d+)([^`,\n]*)", text)]
    assert len(shown) >= 2
    for maze, run in shown:
        assert len(read(maze, ROOT / run.strip()).steps) > 1


def test_each_block_about_mazes_runs_by_itself() -> None:
    text = (ROOT / "docs" / "mazes.md").read_text().replace("10_000", "50")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(blocks) >= 2
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], check=True)


def test_versions_agree(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--version"])
    assert capsys.readouterr().out == f"kova {kova_rl.__version__}\n"
    assert f"version: {kova_rl.__version__}" in (ROOT / "CITATION.cff").read_text()
    cli.main(["info"])
    shown = capsys.readouterr().out
    assert f"torch {torch.__version__}" in shown
    for name in ("stable-baselines3", "gymnasium", "mujoco"):
        assert f"{name} {importlib.metadata.version(name)}\n" in shown
    assert f"system {platform.platform()}\n" in shown


def test_a_pipe_that_is_closed_is_no_error() -> None:
    command = [sys.executable, "-m", "kova_rl.cli", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as kova:
        assert kova.stdout is not None
        assert kova.stderr is not None
        kova.stdout.close()
        assert kova.stderr.read() == b""
    assert kova.returncode == 141


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "train ppo CartPole-v1 --steps abc",
            "--steps: expected a whole number, such as 3 or 1e6, got 'abc'",
        ),
        ("train ppo CartPole-v1 --seed 1.5", "--seed: expected a whole number, such as 3 or 1e6, got '1.5'"),
        ("train ppo CartPole-v1 --decay maybe", "--decay: expected True or False, got 'maybe'"),
        ("train ppo CartPole-v1 --network 64 x", "--network: expected a whole number"),
        ("demo --steps abc", "--steps: expected a whole number"),
        ("reproduce fig1 --seeds many", "--seeds: expected a whole number"),
    ],
)
def test_what_is_no_number_is_refused_in_words(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(words.split())
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said in shown
    assert "no type matching" not in shown


def test_the_command_line_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", "--help"])
    assert stop.value.code == 0
    assert "--steps" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        cli.main(["show", "chain", "--updates", "3"])
    assert stop.value.code == 2
    assert "--updates must be a whole number, at least 30, got 3" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(
        command in shown
        for command in (
            "demo",
            "evaluate",
            "train",
            "sweep",
            "report",
            "table",
            "reproduce",
            "show",
            "study",
            "info",
        )
    )


NAMES = [each.__metadata__[0].name for each in cli.Command.__args__]


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_is_in_words(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([name, "--help"])
    assert "None}" not in capsys.readouterr().out, "an option's type leaks"


def test_the_demo_makes_a_table_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["demo", "--out", str(tmp_path / "new"), "--seeds", "1", "--steps", "150"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("Kova", "Adam", "KTD"))
    for picture in ("curves.png", "curves.pdf", "maze4_kova_seed0.png", "maze4_kova_seed0.gif"):
        assert picture in printed or picture.endswith("pdf")
        assert (tmp_path / "new" / picture).stat().st_size > 10_000


def test_the_chain_has_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show", "chain", "--out", str(tmp_path / "new"), "--seeds", "1", "--updates", "120"])
    printed = capsys.readouterr().out
    assert "memoryless" in printed
    assert "50/80/95%" in printed
    assert (tmp_path / "new" / "chain.png").stat().st_size > 10_000


def test_strategies_are_listed_where_they_are_documented() -> None:
    """A new member is one export, one row in the tests and its place in the docs."""
    groups = {
        "covariance": (covariance, covariance.Covariance, members.STRUCTURES, {"BlockDiagonal"}),
        "evolution": (evolution, evolution.Evolution, members.EVOLUTIONS, set()),
        "observation": (observation, observation.Observation, members.OBSERVATIONS, set()),
    }
    for page, (module, base, rows, internal) in groups.items():
        exported = {getattr(module, name) for name in module.__all__}
        kinds = {
            kind
            for kind in exported
            if isinstance(kind, type) and issubclass(kind, base) and kind is not base
        }
        named = {kind.__name__ for kind in kinds} - internal
        assert named == {type(row).__name__ for row in rows}
        text = (ROOT / "docs" / "api" / f"{page}.md").read_text()
        assert named <= set(re.findall(r"autoclass:: kova_rl\.\w+\.(\w+)", text))


@pytest.mark.parametrize("structure", members.STRUCTURES, ids=members.name)
@pytest.mark.parametrize("kind", members.EVOLUTIONS, ids=members.name)
def test_the_table_of_the_docs_decides_what_raises(
    structure: covariance.Covariance, kind: evolution.Evolution
) -> None:
    assert "{{ compatibility }}" in (ROOT / "docs" / "filter.md").read_text()
    large = torch.nn.Linear(600, 1)
    allowed = limit(type(structure), type(kind))
    assert members.works(structure, kind, members.critic()) == (allowed is None or allowed > 0)
    assert members.works(structure, kind, large) == (allowed is None)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_layers_import_one_way() -> None:
    """filter knows no module of the upper layers, and targets knows neither the filter's mathematics."""
    for path in (SOURCE / "filter").rglob("*.py"):
        ours = {name for name in imports(path) if name.startswith("kova_rl")}
        assert all(re.match(r"kova_rl\.(filter|errors)\b", name) for name in ours), path
        assert "torch.nn" not in imports(path), path
    allowed = {"kova_rl.errors", "kova_rl.filter.checks"}
    assert {name for name in imports(SOURCE / "targets.py") if name.startswith("kova_rl")} <= allowed
    for name in ("batch", "jacobian", "linear", "parameters", "posterior", "tracker", "optimizer"):
        assert not {"kova_rl.targets", "kova_rl.cli"} & imports(SOURCE / f"{name}.py"), name
    upper = {
        "baselines": r"kova_rl\.(filter|errors|posterior|baselines)\b",
        "envs": r"kova_rl\.(filter\.checks|envs)\b",
        "agents": r"kova_rl(\.(filter\.checks|targets|optimizer|baselines|agents))?$|kova_rl\.agents\b",
        "sb3": r"kova_rl\.(?!lab|agents|cli)",
    }
    for folder, allowed_names in upper.items():
        for path in (SOURCE / folder).rglob("*.py"):
            ours = {name for name in imports(path) if name.startswith("kova_rl")}
            assert all(re.match(allowed_names, name) for name in ours), (path, ours)
    for path in SOURCE.rglob("*.py"):
        if "lab" not in path.relative_to(SOURCE).parts and path.name != "cli.py":
            assert not any(name.startswith("kova_rl.lab") for name in imports(path)), path
        if "sb3" not in path.relative_to(SOURCE).parts:
            assert not any(name.startswith(("stable_baselines3", "sb3_contrib")) for name in imports(path)), (
                path
            )
        if path.name != "on_ray.py":
            assert not any(name.split(".")[0] == "ray" for name in imports(path)), path


def test_importing_the_package_needs_no_optional_dependency() -> None:
    heavy = ["matplotlib", "stable_baselines3", "ray", "tyro"]
    code = f"import sys, kova_rl, kova_rl.targets; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "torch>=2.8,<3" in declared


def build_the_site(tmp_path: Path, *options: str) -> Path:
    """In a copy, since the gallery's pages are written beside those of the documentation."""
    for name in ("docs", "examples", "CHANGELOG.md", "CONTRIBUTING.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for made in ("gallery", "_build"):
        shutil.rmtree(tmp_path / "docs" / made, ignore_errors=True)
    (tmp_path / "results").symlink_to(ROOT / "results")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", *options, tmp_path / "docs", site]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.slow
def test_the_gallery_is_run_and_has_its_pictures(tmp_path: Path) -> None:
    site = build_the_site(tmp_path)
    for script in (ROOT / "examples" / "gallery").glob("*.py"):
        assert list((site / "_images").glob(f"sphx_glr_{script.stem}_001.png"))
        page = (site / "gallery" / f"{script.stem}.html").read_text()
        assert "sphx-glr-script-out" in page, "what it printed"


def test_the_documentation_builds(tmp_path: Path) -> None:
    tmp_path = build_the_site(tmp_path, "-D", "plot_gallery=0")
    page = (tmp_path / "filter.html").read_text()
    assert "blocks up to 512" in page
    assert page.count("<math ") > 30
    assert "<mn>1</mn><mn>2</mn></mfrac>" in re.sub(r"\s+", "", page), "one half, not 12 over what follows"
    for path in tmp_path.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r'<(script|link|img)[^>]* (src|href)="(https?:)?//', text), f"{path} loads"
        shown = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", text, flags=re.DOTALL)
        assert not re.search(r"\\(\(|\[|frac|theta|begin)", shown), f"{path} shows LaTeX"
        assert "ForwardRef" not in shown, f"{path} shows how a type is kept and not its name"


def test_the_benchmark_times_what_it_says() -> None:
    found = interleaved(
        {"a": lambda: sum(range(20_000)), "b": lambda: sum(range(200_000))}, rounds=5, seconds=0.01
    )
    assert 3 < found["b"].best / found["a"].best < 30
    names = {bar.name for bar in speed.BARS if bar.limit}
    assert {"Memoryless", "LowRank(32), Leakage", "LowRank(64), Leakage"} <= names


def test_subspace_iteration_is_as_close_to_the_exact_filter_as_eigenvectors_are() -> None:
    errors = accuracy.gain_errors(observation.BatchSize(), 0.01, (16, 32), count=150)
    shipped, optimal = errors["subspace iteration (shipped)"], errors["eigendecomposition"]
    assert shipped[1] < 0.1 * shipped[0] < 0.1
    assert all(a < 2 * b + 1e-9 for a, b in zip(shipped, optimal, strict=True))


@pytest.mark.slow
def test_the_bars_of_the_benchmark_are_met(capsys: pytest.CaptureFixture[str]) -> None:
    speed.main()
    assert "All bars are met." in capsys.readouterr().out


@pytest.mark.slow
def test_a_hundred_thousand_updates_stay_bounded() -> None:
    from benchmarks import stress

    stress.main(100_000)


def test_nothing_trains_with_the_state_of_another_optimizer() -> None:
    """Two Kovas on two critics do not share buffers that matter."""
    torch.manual_seed(0)
    one, two = members.critic(), members.critic()
    a, b, alone = Kova(one), Kova(two), members.critic()
    c = Kova(alone)
    for _ in range(5):
        x = torch.randn(6, 3).double()
        a.step(lambda x=x: one(x).squeeze(-1), x[:, 0])
        b.step(lambda x=x: two(2 * x).squeeze(-1), -x[:, 0])
        c.step(lambda x=x: alone(x).squeeze(-1), x[:, 0])
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), alone.parameters(), strict=True))
