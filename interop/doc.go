// Package interop runs a real Linux kernel beside rdsd, to prove that both
// speak the same RDS over TCP.
//
// The kernel is Debian's user-mode-linux: a plain process whose network card
// is one end of a veth pair inside a network namespace made for the test. Its
// root is the host's own file system, read-only; its first process is
// guest/agent.py, which loads rds and rds_tcp and then does as it is told over
// a serial line (send, receive, ping, netem, counters). rdsd runs in the same
// namespace, on the other end of the pair.
//
// The package holds the harness; what is proved with it stands in the tests.
// Needs root and the packages user-mode-linux, iproute2 and ethtool; Missing
// tells what is not there. A binary that boots a kernel must call HelperMain
// first thing in main or TestMain.
//
// Goroutines: two per running kernel, the reader of that line and the one that
// repeats wake-ups on it; both end with the process. Read vm.go, agent.go and netns.go first.
package interop
