#!/bin/sh
# Generates api/rdsd/v1/*.pb.go and the Python stubs from the .proto files. buf comes
# from npm (its package holds the program); the Go plugins from tools/go.mod.
set -eu
cd "$(dirname "$0")/.."
dir=${TMPDIR:-/tmp}/rdsd-buf
mkdir -p "$dir"
[ -x "$dir/node_modules/.bin/buf" ] || (cd "$dir" && npm init -y >/dev/null && npm install --silent @bufbuild/buf@1.75.0)
PATH="$dir/node_modules/.bin:$PATH"
buf lint
buf generate
sdk/python/generate.sh
