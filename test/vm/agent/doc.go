// Package agent runs commands in the guest of test/vm. Both ends are here: Serve is what the
// guest's first process does, Client what the host asks of it. They talk over a byte stream,
// a port of QEMU's virtio serial device, in JSON objects of a line each (message.go), so that
// a look at the stream shows what happens.
//
// Goroutines: Serve has one that reads and two for each running command; Client has one that
// reads. They end with the stream or with the command.
package agent
