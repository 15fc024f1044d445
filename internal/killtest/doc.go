// Package killtest kills clients and daemons, real processes, while datagrams
// are under way over rings, and accounts for every datagram from outside: each
// payload bears its flow, its number and a hash.
//
// It has tests alone. The test binary is also the clients: a role in the
// environment makes it one (TestMain). Read clients_test.go, daemon_test.go.
package killtest
