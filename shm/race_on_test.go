//go:build race

package shm

// raceDetector says that the race detector is built in: everything takes several times as
// long.
const raceDetector = true
