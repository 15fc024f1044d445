// Package ib is the link contract over RDMA verbs, whatever does them: Verbs is the small part
// of libibverbs and librdmacm that is needed, and providers implement it.
//
// It is being built: there is the interface (verbs.go), and nothing that uses it. No
// configuration names verbs.
package ib
