// Package memtest holds the daemon to limits.memory_bytes from outside: real
// processes of the rdsd program, hostile clients and peers beside many honest
// ones, and the resident memory the kernel counts (VmRSS). It has tests alone.
package memtest
