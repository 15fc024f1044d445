// Package nbd exports block devices by the NBD protocol and attaches them to
// the NBD driver of the kernel.
//
// The server speaks fixed newstyle negotiation, simple and structured replies, block status
// (base:allocation); no TLS: it is meant for a Unix socket. A client's request is checked
// before anything is allocated for it, each connection has a bound on requests and memory,
// and a client that does not read its replies stops only itself.
//
// Client is the other side, for programs that copy or check a volume.
//
// A connection is served by its goroutine, or by the thread of a reactor
// (Options.Reactor), which saves waking threads for each request.
//
// Goroutines of the server: one for each connection, which reads, or sleeps
// while a reactor does (Server.ServeConn; ends with the connection); without a
// reactor one more while its socket is full (conn.drain); one more while it
// looks up block status (conn.lookUp); one for each listener; one while a device
// of the kernel's has lost its connection (keeper.run). A Client has one, which
// reads replies (Client.read; ends with the connection).
//
// Locks: Server.mu guards exports and connections, conn.mu the queue of replies, the wishes
// of the reader and those registered with the reactor, fdStream.mu the end of a descriptor,
// Client.mu the calls under way; none is held while a device or a socket is called, but for
// epoll_ctl, shutdown and poll without waiting. Client.send is held while a request is written.
//
// Read server.go, recv.go (requests in), send.go (replies out), loop.go (on a
// reactor), haggle.go (negotiation); attach.go and device.go for the kernel's driver;
// client.go.
package nbd
