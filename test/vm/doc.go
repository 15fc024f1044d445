// Package vm judges rdsd by a real Linux kernel that has RoCEv2 (rdma_rxe), RTRS and RNBD:
// Debian's, in a virtual machine of QEMU whose processors are emulated, so that it runs where
// neither KVM nor an RDMA device is. No machine's own kernel is asked for anything.
//
// prepare.sh makes the kernel (Debian's packages unpacked into .cache/vm, not installed; RTRS
// and RNBD compiled from Debian's source). Boot starts it: its root is the host's, read-only
// under a layer in memory, so every program of the host runs in it by its path; init is its
// first process and does what Client of package agent asks for.
//
// A scenario is a Go test whose body is given to In. On the host In starts the same test
// binary in the guest, with that one test to run, and reports what came of it; there the body
// runs, as root of a machine of its own: namespaces, modules, devices. The kernel's side of a
// scenario lives in the guest's initial network namespace, where rxe and RTRS work, and ours
// in another one behind a veth pair.
//
// Goroutines: for each guest one that waits for QEMU, one that closes the socket QEMU connects
// to, and the agent client's reader; all end with QEMU. Read vm.go, in.go and kernel.go first.
package vm
