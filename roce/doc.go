// Package roce holds the rules of RoCEv2: InfiniBand's transport in UDP datagrams to port
// 4791, as the Linux kernel's rdma_rxe and network cards speak it.
//
// It is a core room that is being built. There are
//
//   - packets: the base transport header, the headers that may follow it, the table of
//     opcodes, arithmetic of packet sequence numbers (packet.go, opcode.go, psn.go);
//   - the invariant CRC of a packet, over IPv4 and IPv6 (icrc.go);
//   - the memory that peers may touch, by key (memory.go);
//   - queue pairs of reliable connections: their states, SEND with and without immediate,
//     completions, acknowledgements (qp.go, work.go, requester.go, responder.go).
//
// Queue pairs send nothing twice yet: they behave as with retry counts of 0. There is no
// WRITE, READ, atomic operation or invalidation by the peer, which are refused as invalid
// requests, and no connection manager. Device, which is to hold queue pairs and memory of an
// address, has its methods and fails (device.go, burst.go). Nothing of a daemon uses the package.
//
// The package has no goroutine, lock, clock or I/O, and no randomness but the source given. What is parsed comes from a network
// where anybody can send: nothing of it is kept, and nothing in it makes a call panic.
//
// All integers are big-endian on the wire, except the CRC at the end of a packet.
//
// Read packet.go, qp.go and responder.go first.
package roce
