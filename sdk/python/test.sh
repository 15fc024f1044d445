#!/bin/sh
# Everything the Python SDK can prove about itself: the build with its extension,
# types, style, tests.
# Uses the virtual environment in $RDSD_VENV, or makes .venv here. Tests against
# real daemons use $RDSD_BIN or bin/rdsd of the repository; without one they skip
# and say so (with CI=true they fail). Arguments go to pytest, whose summary is
# the last line.
set -eu
cd "$(dirname "$0")"
venv=${RDSD_VENV:-.venv}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" || {
        echo "sdk/python: python3 -m venv failed; on Debian: apt-get install python3-venv" >&2
        exit 1
    }
fi
rm -rf build # setuptools would install what is left of files that are gone
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip -r requirements-test.txt
# Built with the setuptools above and with nothing that is not there.
$pip --no-deps --no-build-isolation .
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
exec "$venv/bin/python" -m pytest "$@"
