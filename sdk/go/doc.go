// Package rdsd is the Go SDK of rdsd: ordered, reliable datagrams to any port
// of any node through the local daemon, without opening a connection yourself.
package rdsd
