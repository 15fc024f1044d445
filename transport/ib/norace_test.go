//go:build !race

package ib

// raceDetector says that the race detector is not built in; see race_test.go.
const raceDetector = false
