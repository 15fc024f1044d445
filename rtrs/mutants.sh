#!/bin/sh
# Breaks the rules of internal/mutant/rtrs.go one at a time and lets the
# simulator look for each (docs/testing.md). Prints one line for each rule found:
# name, world and seed, what the simulator said. Fails when one goes unseen.
set -e
cd "$(dirname "$0")"
seeds=${SEEDS:-2000}
bin=$(mktemp)
trap 'rm -f "$bin"' EXIT
go test -c -tags mutant -o "$bin" .
n=$(sed -n '/^const (/,/rtrsEnd/p' ../internal/mutant/rtrs.go | grep -c '//')
for i in $(seq 101 $((100 + n))); do
	out=$(RDSD_MUTANT=$i "$bin" -test.run '^TestHunt$' -rtrs.seeds="$seeds") || { echo "$out"; echo "rule $i was not found"; exit 1; }
	echo "$out" | grep -v '^PASS$' # fails when that was all: the rule has no name
done
echo "$n rules of rtrs broken, $n found"
