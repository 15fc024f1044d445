//go:build race

package node

// raceDetector: its runtime makes system calls of its own in every thread.
const raceDetector = true
