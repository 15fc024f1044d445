// Package soft makes RDMA devices of plain UDP sockets: RoCEv2 in user space, one socket for
// an address, which speaks to the Linux kernel's rdma_rxe and to others of its kind.
//
// The rules of the protocol are package roce's. This one has the system calls: a burst of
// packets leaves by one sendmmsg that the kernel cuts (UDP_SEGMENT) and is not copied before;
// what arrives, put together by the kernel where it can (UDP_GRO), is read by recvmmsg into
// memory of the reactor. No call blocks.
//
// A socket sends from port 4791, which it is bound to: another source port would need a
// socket each. Kernels take any; switches and cards that spread connections by their source
// ports see one connection between two addresses.
//
// Read socket.go, recv.go, send.go.
package soft
