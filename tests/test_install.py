"""Wheel and sdist are built, and the wheel is installed where there is nothing but its base dependencies.

The environment is new, and sees no package of this one but the base dependencies and what these need: they
are linked into it one by one, in place of a download of PyTorch. So what an extra brings is not there.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import kova_rl

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path = ROOT, code: int = 0) -> str:
    """What a command prints that is expected to end with ``code``; no path leads back to the checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True)
    shown = done.stdout + done.stderr
    assert done.returncode == code, f"{command} ended with {done.returncode}, expected {code}:\n{shown}"
    return shown


def build(source: Path, out: Path, *what: str) -> list[Path]:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *what, "-d", str(out)], cwd=source, check=True
    )
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def needed(requirements: list[str], found: dict[str, importlib.metadata.Distribution]) -> None:
    """Collect the distributions that are required, and those that they require, without extras."""
    for requirement in map(Requirement, requirements):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = importlib.metadata.distribution(name)
        needed(found[name].requires or [], found)


@dataclass
class Clean:
    python: Path
    kova: Path


@pytest.fixture(scope="module")
def clean(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", built[0])
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    wheel = importlib.metadata.Distribution.at(next(packages.glob("kova_rl-*.dist-info")))
    found: dict[str, importlib.metadata.Distribution] = {}
    needed(wheel.requires or [], found)
    for distribution in found.values():
        tops = {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    return Clean(python, folder / "bin" / "kova")


def test_the_wheel_holds_the_package_and_nothing_else(built: list[Path]) -> None:
    wheel, sdist = built
    assert wheel.name == f"kova_rl-{kova_rl.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"kova_rl", f"kova_rl-{kova_rl.__version__}.dist-info"}
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "kova_rl").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert source == {name for name in names if name.startswith("kova_rl/")}
    assert "kova_rl/py.typed" in names
    assert sdist.stat().st_size < 10e6


def test_a_wheel_from_the_sdist_is_the_same(built: list[Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (again,) = build(next(tmp_path.iterdir()), tmp_path / "out", "-t", "wheel")
    assert again.read_bytes() == built[0].read_bytes()


def test_extras_are_not_there(clean: Clean) -> None:
    """The other tests of this file mean something only if this holds."""
    for name in ("matplotlib", "stable_baselines3", "sb3_contrib", "ray", "optuna", "mujoco"):
        assert "ModuleNotFoundError" in run(clean.python, "-c", f"import {name}", code=1)


def test_it_imports_from_the_wheel(clean: Clean, tmp_path: Path) -> None:
    shown = run(
        clean.python, "-c", "import kova_rl; print(kova_rl.__file__, kova_rl.__version__)", cwd=tmp_path
    )
    assert str(clean.python.parents[1]) in shown
    assert kova_rl.__version__ in shown


def test_the_command_runs(clean: Clean, tmp_path: Path) -> None:
    assert "evaluate" in run(clean.kova, "--help", cwd=tmp_path)
    assert run(clean.kova, "--version", cwd=tmp_path) == f"kova {kova_rl.__version__}\n"
    assert "torch" in run(clean.kova, "info", cwd=tmp_path)


def test_the_readmes_first_example_runs(clean: Clean, tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[0]
    shown = run(clean.python, "-c", example + "print(belief.std.shape)", cwd=tmp_path)
    assert "torch.Size([64])" in shown


def test_the_demo_goes_without_pictures(clean: Clean, tmp_path: Path) -> None:
    shown = run(clean.kova, "demo", "--seeds", "1", "--steps", "100", cwd=tmp_path)
    assert "kova-rl[plots]" in shown
    assert "Kova" in shown


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("train ppo CartPole-v1", "sb3"),
        ("sweep mine.toml", "sb3"),
        ("stream", "sb3"),
        ("record CartPole-v1", "sb3"),
        ("evaluate --env CartPole-v1 --policy model.zip", "sb3"),
        ("reproduce fig3 --scale smoke", "sb3"),
        ("report .", "plots"),
        ("show maze4 maze4_kova-as-printed_seed0", "plots"),
    ],
)
def test_what_an_extra_brings_is_asked_for_in_one_sentence(
    words: str, extra: str, clean: Clean, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text('preset = "ppo"\nenvironment = "CartPole-v1"\n')
    (tmp_path / "model.zip").write_bytes(b"")
    shutil.copy(ROOT / "results" / "fig1" / "runs.tar.xz", tmp_path)
    shown = run(clean.kova, *words.split(), cwd=tmp_path, code=2)
    assert "Traceback" not in shown
    assert shown.count(f"pip install 'kova-rl[{extra}]'") == 1
    assert len(" ".join(shown.split())) < 160


def test_a_class_that_needs_stable_baselines3_says_so(clean: Clean, tmp_path: Path) -> None:
    shown = run(clean.python, "-c", "from kova_rl.sb3 import KovaPPO", cwd=tmp_path, code=1)
    last = shown.strip().splitlines()[-1]
    assert last.endswith("needs Stable-Baselines3 and sb3-contrib: pip install 'kova-rl[sb3]'")
