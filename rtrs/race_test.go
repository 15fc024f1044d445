//go:build race

package rtrs

// raceDetector says that the race detector is built in: everything takes several times as
// long.
const raceDetector = true
