// Package transporttest is the conformance suite of transport providers: what
// conn (Run) and RTRS (RunOneSided) may rely on, whatever moves the bytes.
//
// A provider's test calls Run with itself and what it cannot do; a test that
// needs that is skipped with its name. One-sided providers say it themselves (OneSidedCaps).
// Read suite.go, kept.go, onesided.go.
package transporttest
