// Command mutate breaks the product one line at a time and asks the tests whether
// they notice.
//
//	go run ./internal/mutate                  # 100 mutations drawn over all rooms
//	go run ./internal/mutate -n 30 -room conn # of one room
//	go run ./internal/mutate -sweep           # with one build for the edits of a room
//	go run ./internal/mutate -only ID         # one again, with what the tests said
//	go run ./internal/mutate -list -room conn # every mutation there could be
//	go run ./internal/mutate -rules           # the rules broken by hand (make mutants)
//
// A mutation is one small edit of the kind a tired engineer makes: an edge moved, a
// call or an assignment left out, an error swallowed, a check skipped (operators.go).
// It is never written into the tree: the edited file is given to the Go tool with
// -overlay. Each room has a list of test commands, the nearest first (rooms.go); the
// first that fails has noticed, and one that hangs until its time limit has too.
//
// With -sweep the edits of a room are compiled into one binary for each test command,
// each behind a number that the environment says (hooks.go); every test is run once
// without an edit to see which edits it comes by (binary.go), and an edit is tried on
// those tests alone (sweep.go). It says the same in a fraction of the time.
//
// A mutation that nothing noticed is a survivor. Some change nothing that anybody
// could see; those stand in equivalent.txt, each with its reason, and do not count.
// The score is noticed / (drawn - equivalent); docs/testing.md holds the last one.
//
// With -rules it breaks rules of the protocol instead, each by a patch that somebody
// wrote (testdata/rules): there the question is whether the simulators notice what
// matters most, one rule at a time (patch.go, rules.go). Nearly all rules are built into one
// test of each simulator, which breaks the one that it is told to (together.go).
//
// Read first: operators.go, rooms.go, run.go; hooks.go, sweep.go; patch.go, together.go.
package main
