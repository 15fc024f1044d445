// Package roce holds the rules of RoCEv2: InfiniBand's transport in UDP datagrams to port
// 4791, as the Linux kernel's rdma_rxe and network cards speak it.
//
// A Device is one address. It has
//
//   - queue pairs of reliable connections: their states, SEND, WRITE and READ, completions,
//     acknowledgements, and what is sent again (qp.go, work.go; requester.go, complete.go and
//     retry.go for what is sent, responder.go and reading.go for what is received);
//   - the memory that peers may touch, by key (memory.go);
//   - a line of queue pairs with something to send, and their timers (device.go, timers.go);
//   - bursts: what one system call sends (burst.go);
//   - the datagrams of connection managers, which it carries and does not look into (mad.go).
//
// Below that are packets: the base transport header, the headers that may follow it, the table
// of opcodes, arithmetic of packet sequence numbers (packet.go, opcode.go, psn.go), and the
// invariant CRC, over IPv4 and IPv6 (icrc.go).
//
// There are no atomic operations, which are refused as invalid requests; no memory windows,
// because keys are exposed and withdrawn at no cost; no shared receive queues, and no
// congestion control by marks of the network, which are not looked at.
//
// The package has no goroutine, lock, clock or I/O, and no randomness but the source given.
// What arrives comes from a network where anybody can send: nothing of it is kept, nothing is
// allocated for it, and nothing in it makes a call panic. Whoever can send with a peer's
// address and guess a number of 24 bits can disturb a connection, and with a key of 32 bits
// write what it is for: RoCEv2 has no authentication.
//
// All integers are big-endian on the wire, except the CRC at the end of a packet.
//
// Read device.go, requester.go and responder.go first.
package roce
