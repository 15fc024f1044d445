// Package sim is a network that exists only in virtual time: hosts, and TCP connections
// between them that behave as TCP does towards the programs at their ends. It owns one
// event heap (Clock) and draws all random numbers from one seeded source, so that a run
// repeats exactly.
//
// It reproduces, because the protocol depends on it:
//
//   - a byte stream delivered in chunks of any size, so that a reset falls
//     inside headers and payloads;
//   - a send buffer that fills (Write takes part of its bytes) and a receive buffer that
//     closes the window;
//   - the count of bytes the other side's TCP acknowledged, which lags behind those that
//     arrived and says nothing about those the program there has read;
//   - FIN behind the last byte; RST that destroys bytes under way and leaves those that had
//     arrived readable; RST as the answer to bytes for a closed or vanished connection;
//     ends that do not learn of the other's death;
//   - connection attempts that are refused, lost, or succeed late.
//
// Over these connections it also makes one-sided links, as over TCP, so that a
// cut or a reset falls inside of a write.
//
// No goroutine, no lock: everything happens in calls of Clock.Step. Read
// clock.go, net.go (hosts, dialling, faults), pipe.go (one direction) and
// onesided.go.
package sim
