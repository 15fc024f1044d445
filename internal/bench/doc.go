// Package bench holds no program of its own: its tests measure rdsd beside
// small programs without any protocol, in one run, and `make bench` prints the
// report that docs/performance-log.md keeps.
//
// Everything measured is a process: the test binary starts itself again in a
// role that the environment names (role_test.go), and bin/rdsd for the daemons.
// A process is given a board (board_test.go), a page it shares with the
// harness: counters and a histogram of latencies are read from outside at both
// ends of a window, so nobody is asked anything while it is measured. CPU time
// is read from outside as well. Children die with their parent, and by
// themselves when their time is over.
//
// A round runs every program once; rounds are interleaved, and a row of the
// report is the median of the ratios of rounds (report_test.go). Absolute
// figures belong to the machine.
//
// One-sided links, over TCP and over RoCEv2 in user space, are measured without a daemon: each
// end is a reactor and a provider (onesided_test.go), beside the packets of RoCEv2 alone
// (bareroce_test.go).
//
// Volumes are measured from outside, by fio, and their rows stand against the
// best of several servers (volume_test.go, volume_rows_test.go).
//
// Read rows_test.go (what is compared with what, and the bars), relay_test.go
// (the yardstick: four processes without a protocol) and rdsd_test.go (rdsd's
// own programs).
package bench
