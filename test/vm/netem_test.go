package vm

import (
	"os"
	"path/filepath"
	"strings"
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

// harmed runs fio on a disk under each harm. late is called when the first fio of one takes longer
// than any that goes on; the net is whole again then.
func harmed(t *testing.T, l link, disk string, late func()) {
	t.Helper()
	for _, h := range harms {
		begun := time.Now()
		netem(t, ours, l.peer, h...)
		first := fio(t, disk, 1)
		select {
		case <-first.done:
		case <-time.After(longer(60 * time.Second)):
			netem(t, ours, l.peer)
			late()
		}
		first.wait(20 * time.Second)
		for _, mib := range cases(nil, 8) {
			fio(t, disk, mib).wait(10 * time.Minute)
		}
		netem(t, ours, l.peer)
		t.Logf("%v: %.1f s", h, time.Since(begun).Seconds())
	}
}

// netemLimit is for kernels, whose sender waits 2.1 s for an acknowledgement that is lost.
func netemLimit() time.Duration {
	if *soak {
		return 40 * time.Minute
	}
	return 5 * time.Minute
}

// TestNetemForKernel: the kernel's client on our volume over a network that loses, doubles
// and reorders 2 % each (harms). Its sender stops for good in about one run of six, when an
// acknowledgement of ours is lost: then, and if nothing is under way at our end, it is begun again.
func TestNetemForKernel(t *testing.T) {
	between(t, netemLimit(), false, topology{mtu: 4200, tries: 4}, func(t *testing.T, l []link) {
		load(t, "rnbd-client")
		n := newNode(t, l[0].other, nil)
		n.export("disk", 16<<20)
		disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: kernelTo(l)})
		harmed(t, l[0], disk, func() { n.stands(disk) })
		kernelUnmap(t, disk)
	})
}

// TestNetemOfKernel: we on the kernel's volume, likewise.
func TestNetemOfKernel(t *testing.T) {
	between(t, netemLimit(), false, topology{mtu: 4200}, func(t *testing.T, l []link) {
		memoryDisk(t, 16<<20)
		n, m := mapOfKernel(t, l)
		harmed(t, l[0], m.Device, func() {})
		n.unmap(m)
	})
}

// stands ends the scenario with Stands if the kernel, by its own count, has requests under way on a
// disk that do not change for ten seconds, while at our end there are none and nothing comes.
func (n *node) stands(disk string) {
	n.t.Helper()
	look := func() (kernels string, ours int, came uint64) {
		b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(disk), "inflight"))
		if err != nil {
			n.t.Fatal(err)
		}
		for _, p := range n.Paths() {
			ours += p.InFlight
			came += p.Reads + p.Writes
		}
		return strings.Join(strings.Fields(string(b)), " "), ours, came
	}
	was, _, before := look()
	for range 10 {
		time.Sleep(time.Second)
		if is, ours, came := look(); is == "0 0" || is != was || ours > 0 || came != before {
			return
		}
	}
	n.t.Fatalf("%s: reads and writes under way there are %s, and none at our end", Stands, was)
}
