// Package processtest holds tests of the daemon as a process: its exit codes and the
// unit file, signals, descriptors, full disks, and system calls that fail. They run
// the real program (RDSD_BIN, or built), and injections run it under strace.
package processtest
