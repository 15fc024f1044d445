// Package peers is the one registry of the nodes that this one speaks with. What is to be
// decided about a peer before any rule of a protocol applies is decided here, once, for
// datagrams and for volumes alike:
//
//   - who may be a peer: by the rule for the address, and on this machine by whose the
//     other end is (who.go);
//   - which transport a peer is reached by (transports.go);
//   - how many connections that have not said who they are may be had by whom, which of
//     them makes room, and who is charged for them (handshakes.go; of volumes: onesided.go);
//   - how many connections are made at a time, and which of them first (dials.go).
//
// What happens after that differs, and is the protocols' own: states, time limits,
// heartbeats and the pauses between attempts are in conn for lanes and in rtrs for paths
// of volumes (docs/adr/0012-paths-of-volumes.md). docs/architecture.md has the table.
//
// Locks: one for the handshakes and one for the dials, both leaves: nothing is called with
// them held. There are no goroutines.
//
// Read registry.go and transports.go first.
package peers
