// Package journey puts together what daemons tell of datagrams, stage by stage (sdk/go,
// Admin.Trace): one Journey for each datagram, with the times of both nodes, how far the
// clocks of the two differ, and where the time went; and it writes journeys as spans of
// OpenTelemetry.
//
// It asks nobody: `rdsd trace` brings the events. It has no goroutine and no lock.
//
// Read journey.go first; then clock.go, stages.go and otlp.go.
package journey
