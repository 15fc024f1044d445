#!/bin/sh
# Breaks the rules of internal/mutant one at a time and lets the simulator look
# for each (docs/testing.md). Prints one line for each rule found: name, seed,
# invariant, what the simulator said. Fails when a rule's breaking goes unseen.
# The rules of RTRS are rtrs/mutants.sh's; those that whole worlds show within
# few seeds are broken here again.
set -e
cd "$(dirname "$0")"
seeds=${SEEDS:-2000}
bin=$(mktemp)
trap 'rm -f "$bin"' EXIT
go test -c -tags mutant -o "$bin" .
n=$(sed -n 's/^| //;/^[[:space:]]*[A-Z][A-Za-z]* .*\/\//p' ../mutant/mutant.go | grep -vc 'Count')
v=$(sed -n '/^const (/,/rnbdEnd/p' ../mutant/rnbd.go | grep -c '//')
found=0
for i in $(seq 1 "$n") 101 102 103 105 106 107 108 111 112 115 117 119 $(seq 201 $((200 + v))); do
	out=$(RDSD_MUTANT=$i "$bin" -test.run '^TestHunt$' -sim.seeds="$seeds") || { echo "$out"; echo "rule $i was not found"; exit 1; }
	echo "$out" | grep -v '^PASS$' # fails when that was all: the rule has no name
	found=$((found + 1))
done
echo "$found rules broken, $found found"
