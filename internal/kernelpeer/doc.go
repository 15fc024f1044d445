// Package kernelpeer is for tests that need a peer which is no rdsd: over TCP it does the
// least that a Linux kernel without lanes does (net/rds/tcp.c), so that a daemon takes it
// for one. Real kernels are in interop.
package kernelpeer
