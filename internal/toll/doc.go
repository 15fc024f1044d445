// Package toll finds the client for whom system calls take long.
//
// What the daemon sends to a client, and also what it receives from one, wakes up
// everybody who watches the client's end, and a client can have a hundred thousand of
// those: epoll sets, or one descriptor many times over in a poll. The kernel walks them
// all within the daemon's call, some 60 ns each, so that a thread that serves others
// stands still for milliseconds, or a client's messages take whole processors. There
// is no call that does not; and a thread of its own for each client would cost everybody
// what one does. So calls are measured, and who makes them long is not served any more.
//
// A Toll is for whoever makes the calls itself; Conn is a net.Conn with one.
//
// By the clock a call is long also when the thread has lost its processor meanwhile.
// That only makes a suspect, whose next calls are measured in the thread's own time.
package toll
