"""python -m rdsd: the version, and which front ends this installation has."""

from . import __version__
from ._front_end import choose, why_no_rings
from ._target import resolve_target


def main() -> None:
    target = resolve_target(None)
    print(f"rdsd {__version__}; to {target}: {', '.join(choose(None, target))}")
    if reason := why_no_rings():
        print(reason)


main()
