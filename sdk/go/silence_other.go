//go:build !linux

package rdsd

import (
	"net"
	"time"
)

// setUserTimeout is for Linux: elsewhere what was sent waits for as long as the system lets it.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
