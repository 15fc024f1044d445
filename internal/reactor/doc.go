// Package reactor is a thread that finds work and does it: an event loop over
// descriptors, memory that is polled, timers and functions of other threads.
//
// A Reactor is one goroutine, locked to its OS thread unless work is rare, with an epoll set of
// its own. It never hands work to another goroutine. While there is work it makes system calls
// that cannot block without telling the Go scheduler; when there is none it calls sched_yield for
// a while before it sleeps, because waking a thread costs twenty times what the work costs; and
// when nothing moves it sleeps in epoll_wait, or rests without a thread, and costs nothing. How
// long it yields adapts to its success in finding work (spin.go, rest.go).
//
// One turn: functions given to Do, timers, hot pollers, ready descriptors, then the
// functions given to Defer. Each of them does a bounded piece of work and comes again, so
// that none keeps the others waiting.
//
// Goroutines: one for each Reactor, ended by Close. Locks: Reactor.regMu (the table of
// descriptors), queue.mu (functions), timers.mu; none is held while code of others runs. A
// panic in that code ends its owner, if it has one, and otherwise the process (contain.go).
//
// Read reactor.go (the loop), hot.go (pollers, going to sleep), spin.go.
package reactor
