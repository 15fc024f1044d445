// Package peers is the one registry of the nodes that this one speaks with. What is to be
// decided about a peer before any rule of a protocol applies is decided here, once, for
// datagrams and for volumes alike:
//
//   - who may be a peer: by the rule for the address, and on this machine by whose the
//     other end is (who.go);
//   - which transport a peer is reached by (transports.go);
//   - how many connections that have not said who they are may be had by whom, which of
//     them makes room, and who is charged for them (handshakes.go).
//
// What happens after that differs, and is the protocols' own: states, time limits,
// heartbeats and the pauses between attempts are in conn for lanes and in rtrs for paths
// of volumes (docs/adr/0012-paths-of-volumes.md).
//
// Locks: one for the handshakes, a leaf: nothing is called with it held. There are no
// goroutines.
//
// Read registry.go and transports.go first.
package peers
