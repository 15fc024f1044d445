#!/bin/sh
# Runs every fuzz target of the project for the given time each.
set -eu
time=${1:-1m}
git ls-files '*_test.go' | xargs grep -l '^func Fuzz' | while read -r f; do
	dir=$(dirname "$f")
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$f"); do
		echo "== $dir $target"
		go test "./$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 5s -timeout 24h
	done
done
