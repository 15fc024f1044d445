#!/bin/sh
# Breaks the rules of internal/mutant/rtrs.go one at a time and lets the
# simulator look for each (docs/testing.md). Prints one line for each rule found:
# name, world and seed, what the simulator said. Fails when one goes unseen.
set -e
cd "$(dirname "$0")"
seeds=${SEEDS:-600}
bin=$(mktemp)
trap 'rm -f "$bin"' EXIT
go test -c -tags mutant -o "$bin" .
n=$(sed -n '/^const (/,/rtrsEnd/p' ../internal/mutant/rtrs.go | grep -c '//')
for i in $(seq 101 $((100 + n))); do
	RDSD_MUTANT=$i "$bin" -test.run '^TestHunt$' -rtrs.seeds="$seeds" | grep -v '^PASS$' || { echo "rule $i was not found"; exit 1; }
done
echo "$n rules of rtrs broken, $n found"
