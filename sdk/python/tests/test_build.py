"""The package builds with a compiler and without one, also from its source distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build*", "dist", "__pycache__", "*.so", "*.egg-info", "tests", "examples", "bench"
)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, made from a copy of the repository's directories."""
    root = tmp_path_factory.mktemp("sdist")
    for part in ("python", "c"):
        shutil.copytree(HERE.parent / part, root / part, ignore=LEFT_OUT)
    run(root / "python", "setup.py", "-q", "sdist", "-d", str(root / "dist"))
    (archive,) = (root / "dist").iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(root / "unpacked", filter="data")
    (tree,) = (root / "unpacked").iterdir()
    return tree


def run(directory: Path, *args: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *args],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wheel(tree: Path, work: Path, **environment: str) -> Path:
    """Builds in a copy of the tree, as pip does after it has unpacked one."""
    shutil.copytree(tree, work / "tree")
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-v")
    text = run(work / "tree", "-m", "pip", "wheel", ".", *options, "-w", str(work), **environment)
    (work / "log").write_text(text)
    (built,) = work.glob("*.whl")
    return built


def installed(built: Path, work: Path) -> tuple[Path, str]:
    """A fresh environment with the wheel in it, and what it says of itself."""
    venv = work / "venv"
    run(work, "-m", "venv", "--without-pip", str(venv))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = venv / "lib" / version / "site-packages"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(packages)
    # What rdsd needs, from the environment of this test, behind the wheel's own.
    (packages / "needs.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-m", "rdsd"],
        cwd=work,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return packages, done.stdout


def test_with_a_compiler(sdist: Path, tmp_path: Path) -> None:
    assert (sdist / "c" / "include" / "rdsd.h").is_file()
    built = wheel(sdist, tmp_path, CFLAGS="-O0 -g0")
    assert "-cp311-abi3-" in built.name
    packages, says = installed(built, tmp_path)
    assert (packages / "rdsd" / "_rings.abi3.so").is_file()
    assert (packages / "rdsd" / "_rings.pyi").is_file()
    assert "rings, seqpacket, grpc" in says


def test_without_a_compiler(sdist: Path, tmp_path: Path) -> None:
    built = wheel(sdist, tmp_path, CC="/bin/false")
    assert 'building extension "rdsd._rings" failed' in (tmp_path / "log").read_text()
    packages, says = installed(built, tmp_path)
    assert not list((packages / "rdsd").glob("*.so"))
    assert "seqpacket, grpc" in says
    assert "has no rings" in says
