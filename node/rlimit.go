package node

import (
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
)

// descriptorsNeeded is the sum of what the limits allow: a descriptor for each
// lane of each peer, for each client and each handshake, and some for
// listeners, files and the runtime.
func descriptorsNeeded(c *Config) uint64 {
	return uint64(c.Limits.MaxPeers) + uint64(c.Limits.MaxClients) + uint64(c.Limits.MaxHandshakes) + maxHTTPConns + 64
}

// CheckSystem tells whether this system can give what a configuration asks of it, as
// far as that can be told without doing it.
func CheckSystem(c *Config) error { return checkDescriptors(c, slog.New(slog.DiscardHandler)) }

// checkDescriptors compares limits.max_descriptors with what the system
// allows. A number the system does not allow is an error; limits that could
// use more than there is are a warning, for they may never be reached.
func checkDescriptors(c *Config, log *slog.Logger) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	have := r.Cur
	if n := uint64(c.Limits.MaxDescriptors); n > 0 {
		if n > have {
			return &ConfigError{c.Origin("limits.max_descriptors").String(), "limits.max_descriptors",
				fmt.Sprintf("the system allows %d", have), "at most that, or a higher LimitNOFILE= in the unit file"}
		}
		have = n
	}
	if need := descriptorsNeeded(c); need > have {
		log.Warn("the limits could need more file descriptors than there are", "need", need, "have", have)
	}
	return nil
}
