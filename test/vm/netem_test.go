package vm

import (
	"testing"
	"time"
)

// harms are what netem does to the packets that we send. The kernel's are spared: a sender of
// rxe in Linux 6.1 that is told of a gap (NAK) while several of its messages are under way may
// send one packet again and then nothing for good, without a timeout. Between two kernels,
// RNBD over "delay 1ms reorder 2%" stands still within seconds, in the same way, and over
// "loss 2%" of both ends, each time with a registration of memory that its sender tries again in
// vain ("rxe_reg_fast_mr: mr->lkey = ... not free").
var harms = [][]string{{"loss", "2%"}, {"duplicate", "2%"}, {"delay", "1ms", "reorder", "2%"}}

// harmed runs fio on a disk under each harm.
func harmed(t *testing.T, l link, disk string, mib int) {
	t.Helper()
	for _, h := range harms {
		begun := time.Now()
		netem(t, ours, l.peer, h...)
		fio(t, disk, mib).wait(80 * time.Second)
		for _, mib := range cases(nil, 8) {
			fio(t, disk, mib).wait(10 * time.Minute)
		}
		netem(t, ours, l.peer)
		t.Logf("%v: %.1f s", h, time.Since(begun).Seconds())
	}
}

// netemLimit is for kernels, which send again after 2.1 s and more what is lost.
func netemLimit() time.Duration {
	if *soak {
		return 40 * time.Minute
	}
	return 5 * time.Minute
}

// TestNetemForKernel: the kernel's client on our volume over a network that loses, doubles
// and reorders 2 % each (harms). Its sender does not have to go back for an acknowledgement that is
// lost, which it might not outlive.
func TestNetemForKernel(t *testing.T) {
	between(t, netemLimit(), false, topology{mtu: 4200}, func(t *testing.T, l []link) {
		load(t, "rnbd-client")
		n := newNode(t, l[0].other, nil)
		n.export("disk", 16<<20)
		disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: kernelTo(l)})
		harmed(t, l[0], disk, 4)
		kernelUnmap(t, disk)
	})
}

// TestNetemOfKernel: we on the kernel's volume, likewise.
func TestNetemOfKernel(t *testing.T) {
	between(t, netemLimit(), false, topology{mtu: 4200}, func(t *testing.T, l []link) {
		memoryDisk(t, 16<<20)
		n, m := mapOfKernel(t, l)
		harmed(t, l[0], m.Device, 1)
		n.unmap(m)
	})
}
