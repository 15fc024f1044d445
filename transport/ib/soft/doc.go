// Package soft makes RDMA devices of plain UDP sockets: RoCEv2 in user space, one socket for
// an address, which speaks to the Linux kernel's rdma_rxe and to others of its kind.
//
// A Device is an ib.Verbs. The rules of the protocol are those of package roce and the ones of
// making connections those of roce/cm; both are guarded by the device's lock. This package has
// the system calls, the clock and the randomness: a burst of packets leaves by one sendmmsg that
// the kernel cuts (UDP_SEGMENT) and is not copied before; what arrives, put together by the
// kernel where it can (UDP_GRO), is read by recvmmsg into memory of the device. No call blocks.
//
// A turn of the reactor reads what there is, within bounds, lets handlers poll and post, and at
// its end sends the answers, and the acknowledgements behind them. Whoever posts on another
// thread sends itself, unless another is sending, which then sends for all.
//
// A socket sends from port 4791, which it is bound to: another source port would need a
// socket each. Kernels take any; switches and cards that spread connections by their source
// ports see one connection between two addresses.
//
// Goroutines: one for each device, which watches the machine's interfaces and is ended by Close;
// one for a moment for memory that is unmapped.
// Locks: Device.mu, and socket.mu, which keeps the descriptor open during a call; neither is
// held while a handler is called, and Device.mu not during a system call that moves packets. The
// guard of a domain (ib.Domain) and Config.Charge are called with Device.mu held.
//
// Read device.go (steps), turn.go (what arrives), send.go; qp.go and connect.go for what
// ib.Verbs asks for.
package soft
