// Package rdsdtest runs real daemons for tests: processes of the rdsd program
// on loopback addresses, each with its own client socket, ended with the test.
//
// The program is $RDSD_BIN, or built once per test process from this module.
// Start with rdsdtest.go.
package rdsdtest
