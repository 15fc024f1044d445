// Package hour keeps which ports were congested in the last hour, and for how long.
//
// It is a structure alone: whoever owns it brings the time, as a duration since the start,
// and what has changed; it holds no lock, starts nothing and reads no clock. What it
// takes is bounded: so many ports, each with an hour of slots, less than a megabyte in all,
// and what is left of all others together.
//
// Read hour.go first, then track.go.
package hour
