//go:build race

package node

// raceDetector says that it runs: its runtime makes system calls of its own in every
// thread.
const raceDetector = true
