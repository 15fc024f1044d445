// Package transcript pins the behaviour of random programs, step by step.
//
// A core is deterministic: the same events at the same times give the same frames,
// orders, outcomes, timers and counters. A test that draws events from a seed and
// writes down everything that can be seen from outside after each of them has a
// transcript. The file it is compared with holds one short hash for each step, so that
// a change anywhere shows, with the seed and the step where it shows first.
//
// A transcript that changed is not wrong by that. One that is meant to change is read with
// -transcript.seed on both sides of the change, and then written again with -update.
//
// It has no goroutine. Only tests use it. Read transcript.go.
package transcript
