#!/bin/sh
# Breaks the rules of internal/mutant one at a time and lets the simulator look
# for each (docs/testing.md). Prints one line for each rule found: name, seed,
# invariant, what the simulator said. Fails when a rule's breaking goes unseen.
set -e
cd "$(dirname "$0")"
seeds=${SEEDS:-600}
bin=$(mktemp)
trap 'rm -f "$bin"' EXIT
go test -c -tags mutant -o "$bin" .
n=$(sed -n 's/^| //;/^[[:space:]]*[A-Z][A-Za-z]* .*\/\//p' ../mutant/mutant.go | grep -vc 'Count')
bad=0
for i in $(seq 1 "$n"); do
	RDSD_MUTANT=$i "$bin" -test.run '^TestHunt$' -sim.seeds="$seeds" | grep -v '^PASS$' || bad=1
	[ "$bad" = 0 ] || { echo "rule $i was not found"; exit 1; }
done
echo "$n rules broken, $n found"
