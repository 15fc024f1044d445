//go:build race

package kernelnbd

const raceEnabled = true
