package bench

import "time"

func notInstalled(what string) func(time.Duration) (sample, error) {
	return func(time.Duration) (sample, error) { return sample{}, skip("%s: not installed", what) }
}

func init() {
	for _, n := range []string{"Aeron, round trip", "Aeron, 64 B, MTU 8 KiB", "Aeron, 64 B, MTU 64 KiB"} {
		programs[n] = notInstalled("Aeron")
	}
	for _, n := range []string{"NATS leaf pair, round trip", "NATS leaf pair, 64 B"} {
		programs[n] = notInstalled("NATS")
	}
	for _, n := range []string{"ZeroMQ, 64 B", "ZeroMQ, 1 KiB"} {
		programs[n] = notInstalled("ZeroMQ")
	}
}
