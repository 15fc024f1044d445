//go:build !race

package rtrs

// raceDetector: see race_test.go.
const raceDetector = false
