//go:build race

package rtrs

// raceDetector: everything takes several times as long.
const raceDetector = true
