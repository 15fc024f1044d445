// Package kernelnbd holds no program: its tests attach our volumes to the NBD
// driver of a real Linux kernel, under user-mode Linux, and use them as any
// disk is used: ext4, mounts, traffic that is verified, fsck, cut connections.
//
// The test binary runs twice. On the host it boots a kernel whose first process
// is itself, with the same tests to run; there each test does its work and the
// host's test of the same name reports what came of it (main_test.go). So
// `go test -run TestTimeout` boots a kernel and runs that one.
//
// Read main_test.go, disk_test.go (a volume attached to the kernel) and
// traffic_test.go (what is written to it and how it is verified).
package kernelnbd
