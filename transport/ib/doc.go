// Package ib is the contract of one-sided links over RDMA verbs. Verbs (verbs.go) is what a
// device has to do, and providers of devices implement it; the rest of the package is a link
// over any of them, and knows none.
//
// What is one thing in the contract is mostly one in verbs: a link is a queue pair, an
// operation a work request, what is received the completion of a slot. The package has what is
// in between:
//
//   - work requests in a ring that the device is handed pieces of, and operations that wait for
//     a place (sendqueue.go, late.go);
//   - turns: completions to events, slots posted again, the end of a link when the device has
//     nothing of it any more (turn.go);
//   - memory that is not the device's, copied; that of each link, charged (link.go, extents.go);
//   - connecting with the parameters of RTRS: retry counts of 7, so that a receiver which is not
//     ready is waited for, and nothing to be READ (provider.go, listen.go);
//   - keys at addresses drawn at random, revoked at once or later (domain.go).
//
// Why the interface asks for what it does stands in docs/adr/0029-verbs-of-a-device.md.
//
// RDS over verbs is not there, nor is a device that registers memory by work requests (memory
// windows): Grant registers in the domain. node makes a Provider for each device, and
// node/volume uses it as it uses transport/tcp.
//
// Goroutines: one for each request to connect that is being answered, ended with the call; all
// else runs on its caller or on the device's reactor. Locks: link.mu, taken with the locks of a
// core held, and held during calls of the device, but for QP.Post; then domain.mu. Handlers are
// called with none.
//
// Read verbs.go, link.go and turn.go first.
package ib
