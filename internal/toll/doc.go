// Package toll finds clients that make system calls take long.
//
// Each message that the daemon sends to a client or receives from one wakes every watcher
// of the client's end, and a client can have a hundred thousand of those: epoll sets, or
// one descriptor many times over in a poll. The kernel walks them all within the daemon's
// call, some 60 ns each, so that a thread that serves others stands still for milliseconds,
// or a client's messages take whole processors. There is no call without that; and with a
// thread for each client all would pay for one. So calls are measured, and a client that
// makes them long is not served any more.
//
// A Toll is for code that makes the calls itself; Conn is a net.Conn with one.
//
// By the clock a call is long also when the thread has lost its processor meanwhile.
// That only makes a suspect, whose user's calls are then measured in the thread's own time for a
// while. What long ones take is added up for the user, and time makes up for it, not short ones.
package toll
