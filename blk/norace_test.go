//go:build !race

package blk_test

const raceEnabled = false
