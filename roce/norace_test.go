//go:build !race

package roce

// raceDetector says that the race detector is not built in; see race_test.go.
const raceDetector = false
