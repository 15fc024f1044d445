"""Builds the extension module rdsd._rings; everything else stands in pyproject.toml.

It is the C library of sdk/c, compiled into the module: from the repository
beside this directory, or from the copy that a source distribution carries. It is
optional: without a compiler, or where it cannot be built, the package is installed
without rings, and says so when they are asked for (python -m rdsd tells).
"""

import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CARRIED, BESIDE = HERE / "c", HERE.parent / "c"
LIBRARY = CARRIED if (CARRIED / "include").is_dir() else BESIDE

# CPython without its lock has no stable ABI before 3.15.
ABI = (3, 11)


def relative(paths: list[Path]) -> list[str]:
    """As setuptools wants them: from here, with "..", sorted."""
    return sorted(
        str(Path("..") / path.relative_to(HERE.parent))
        if HERE not in path.parents
        else str(path.relative_to(HERE))
        for path in paths
    )


def extensions() -> list[Extension]:
    sources = [*(HERE / "ext").glob("*.c"), *(LIBRARY / "src").glob("*.c")]
    if not (LIBRARY / "include" / "rdsd.h").is_file():
        print("rdsd: sdk/c is not here: this installation has no rings", file=sys.stderr)
        return []
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        print("rdsd: a Python without its lock has no rings yet", file=sys.stderr)
        return []
    headers = [*(HERE / "ext").glob("*.h"), *LIBRARY.glob("*/*.h")]
    return [
        Extension(
            "rdsd._rings",
            sources=relative(sources),
            depends=relative(headers),
            include_dirs=["ext", str(LIBRARY / "include"), str(LIBRARY / "src")],
            define_macros=[("Py_LIMITED_API", f"0x{ABI[0]:02x}{ABI[1]:02x}0000")],
            extra_compile_args=["-std=gnu11", "-pthread", "-fvisibility=hidden"],
            extra_link_args=["-pthread", "-Wl,-Bsymbolic"],
            py_limited_api=True,
            optional=True,
        )
    ]


class SourceDistribution(sdist):
    """Carries the sources of sdk/c along."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for part in ("include", "src"):
            shutil.copytree(LIBRARY / part, Path(base_dir) / "c" / part, dirs_exist_ok=True)


setup(
    ext_modules=extensions(),
    cmdclass={"sdist": SourceDistribution},
    options={"bdist_wheel": {"py_limited_api": f"cp{ABI[0]}{ABI[1]}"}},
)
