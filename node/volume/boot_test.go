package volume

import (
	"errors"
	"reflect"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rnbd"
)

// TestUnknownBoot: where the kernel does not say which start of the machine this is, two of them are
// neither taken for one nor for two.
func TestUnknownBoot(t *testing.T) {
	for _, c := range []struct {
		was, is     string
		same, other bool
	}{{"a", "a", true, false}, {"a", "b", false, true}, {"a", "", false, false}, {"", "a", false, false}, {"", "", false, false}} {
		s, st := &store{boot: c.is}, &state{Running: true, Boot: c.was, Past: []pastState{{Dev: 1, Ino: 2, Where: "/disk"}}, Held: []heldState{{Session: "a", Name: "d", Dev: 1}}}
		if s.sameBoot(st) != c.same || s.otherBoot(st) != c.other || s.crashed(st) != c.same {
			t.Errorf("%q after %q: same %v, other %v, crashed %v", c.is, c.was, s.sameBoot(st), s.otherBoot(st), s.crashed(st))
		}
		if past := []rnbd.Past{{ID: blk.FileID{Dev: 1, Ino: 2}, Where: "/disk", Earlier: !c.same}}; !reflect.DeepEqual(s.past(st), past) {
			t.Errorf("%q after %q: of the past %+v", c.is, c.was, s.past(st))
		}
		if held := s.held(st); held[0].Earlier == c.same {
			t.Errorf("%q after %q: held %+v", c.is, c.was, held)
		}
	}
}

// TestDevicesOfAnUnknownBoot: a device that the kernel knows by the name that was drawn for it is taken up
// also where nobody knows whether the machine has been started since; one that only has the number is not.
func TestDevicesOfAnUnknownBoot(t *testing.T) {
	_, client, _ := withKernel(t)
	client.stop()
	client.boot = unknownBoot
	h := client.start()
	h.drv.status = func(int) (map[int]bool, error) { return map[int]bool{3: true}, nil }
	for _, known := range []bool{true, false} {
		h.drv.backend = func(i int) (string, bool) { return "rdsd:m:1", known && i == 3 }
		for _, boot := range []string{"", "one"} {
			old := &state{Boot: boot, Mappings: []mappingState{{ID: "m", As: AsNBD, Device: "/dev/nbd3", Backend: "rdsd:m:1"}}}
			if n := h.numbers(old); n.alive[0] != known {
				t.Errorf("the name is told %v, boot %q: alive %v", known, boot, n.alive[0])
			}
		}
	}
}

// TestUsersOfAnUnknownBoot: programs go on with a mapping whose daemon is started again where nobody knows whether the
// machine was. They are told what another has written meanwhile, and the sockets of mappings that do not
// persist end.
func TestUsersOfAnUnknownBoot(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	client.boot = unknownBoot
	server.cfg.Exports = []ExportSpec{file(t, "disk", 8<<20), file(t, "more", 8<<20)}
	server.start()
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	more := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "more"})
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	client.crash()
	otherWrites(t, server)
	client.start()
	if i := back(t, client, m.ID); i.State != StateClosed {
		t.Errorf("another has written, and programs go on with it: %v, %q", i.State, i.LastError)
	}
	if i, err := client.h.Mapping(more.ID); !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("nobody may have it any more: %+v, %v", i, err)
	}
}
