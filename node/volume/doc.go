// Package volume is everything a daemon does with volumes: it exports files,
// block devices and memory to other nodes, maps volumes of other nodes, and
// gives what it mapped to programs of this node by NBD, over a Unix socket or as
// /dev/nbdN of the kernel. It is the shell of rtrs and rnbd: threads, locks,
// timers, sockets and files are here, the protocol is there.
//
// Host is the entry. Its methods may be called from any goroutine and check all
// they are given; what they return are copies. What a Host takes from where it runs
// (clocks, goroutines, waits, memory, its disk) is a Machine, and the daemon's is this
// machine: a simulated world has another one.
//
// The path of a request runs to completion. Where it is mapped, the session's
// reactor (shell.home) takes what it reads from an NBD connection through rnbd and
// rtrs and writes it to the link; the reactor that reads the answer, the same for
// the first path, writes the NBD reply. Where
// it is exported, the reactor that reads a request hands it to the device, in
// the same turn, and whoever completes it, the same thread or a worker of the
// file, writes the answer. Nothing is handed to another goroutine on the way,
// and nothing is allocated.
//
// Locks: a session as a client has one over its two cores, and all sessions of
// the server have one together, because what is exported is theirs in common
// (shell.mu). It is held for one step of a core; writing to links, submitting to
// devices and completing requests happen after it. Order: mapping.turn,
// store.mu, Host.mu, shell.mu, events.mu. Callbacks of the cores (the types *Env) run with
// shell.mu held and neither block nor lock anything but events.mu; what they
// cannot do they leave to the end of the step (shell.tell, shell.posts).
//
// Goroutines: one for each dial, each volume being opened (at most 2
// for an export or root), each device being closed, each mapping being restored, each listener of a socket,
// each watcher; all of them end with the Host, but for those that wait for a
// file system that hangs; each NBD connection, which sleeps while a reactor serves
// it. Timers run on the reactors, one for each client's
// session and one for the server.
//
// Read host.go (New, Close), shell.go and link.go (what a step is), mapped.go
// (the life of a mapping), exports.go, persist.go.
package volume
