#!/bin/sh
# Regenerates src/rdsd/v1 from api/rdsd/v1: the messages and stubs (grpcio-tools,
# with .pyi from mypy-protobuf) and the copy of errno.json. Run it after a change
# of a .proto file or errno.json and commit the result.
#
# The versions below decide the lower bounds in pyproject.toml: generated code
# refuses to load under an older protobuf or grpcio than the one it was made for.
set -eu
cd "$(dirname "$0")"
venv=${RDSD_GENERATE_VENV:-.venv-generate}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet 'grpcio-tools==1.78.0' 'mypy-protobuf==5.1.0'
PATH="$(cd "$venv/bin" && pwd):$PATH"
python -m grpc_tools.protoc -I ../../api \
    --python_out=src --grpc_python_out=src --mypy_out=src --mypy_grpc_out=src \
    rdsd/v1/rdsd.proto rdsd/v1/volume.proto
cp ../../api/rdsd/v1/errno.json src/rdsd/v1/errno.json
