package hour

import (
	"bufio"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

func port(n int) Port {
	return Port{Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n >> 16)}), uint16(n))}
}

// show prints an hour as the scripts have it: for each port its time, how often it became
// congested, and the slots before the newest with what was in them.
func show(h *Hour, now time.Duration) (out []string) {
	v := h.Look(now, nil)
	line := func(name string, p *PortView, more string) string {
		s := fmt.Sprintf("%s %v x%d%s", name, p.Total, p.Times, more)
		for i := range p.Slot {
			if i > 3 {
				return s + " ..."
			}
			s += fmt.Sprintf(" -%d:%d", Slots-1-p.Slot[i], p.Ms[i])
		}
		return s
	}
	for i := range v.Ports {
		state := ""
		if v.Ports[i].Congested {
			state = " now"
		}
		out = append(out, line(fmt.Sprint(v.Ports[i].Endpoint.Port()), &v.Ports[i], state))
	}
	if v.Others.Total > 0 || v.OthersNow > 0 {
		out = append(out, line("others", &v.Others, fmt.Sprintf(" %d now", v.OthersNow)))
	}
	return out
}

// TestScript plays testdata/hour.txt: a line is a time, what happens then, and below it,
// indented, how the hour stands after "show".
func TestScript(t *testing.T) {
	f, err := os.Open("testdata/hour.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := New()
	var now time.Duration
	var want, got []string
	compare := func() {
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("at %v\n got  %s\n want %s", now, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
		}
		want, got = nil, nil
	}
	shows := 0
	for in := bufio.NewScanner(f); in.Scan(); {
		line := in.Text()
		switch {
		case strings.HasPrefix(line, "#") || line == "":
			continue
		case strings.HasPrefix(line, "\t"):
			want = append(want, strings.TrimSpace(line))
			continue
		}
		compare()
		words := strings.Fields(line)
		if now, err = time.ParseDuration(words[0]); err != nil {
			t.Fatal(err)
		}
		switch words[1] {
		case "on", "off":
			for _, w := range words[2:] {
				from, to, many := 0, 0, strings.Contains(w, "-")
				if fmt.Sscanf(w, "%d-%d", &from, &to); !many {
					to = from
				}
				for n := from; n <= to; n++ {
					h.Change(now, port(n), words[1] == "on")
				}
			}
		case "settle":
			var all []Port
			for _, w := range words[2:] {
				n := 0
				fmt.Sscan(w, &n)
				all = append(all, port(n))
			}
			h.Settle(now, all, 0)
		case "show":
			got = show(h, now)
			shows++
			if len(got) > 6 {
				got = append(got[:3:3], append([]string{"..."}, got[len(got)-3:]...)...)
			}
		default:
			t.Fatalf("%q is no line of a script", line)
		}
	}
	compare()
	if shows < 5 {
		t.Errorf("the script shows the hour %d times", shows)
	}
}

// TestAgainstIntervals draws what happens to some ports and compares the hour with what
// the intervals themselves say.
func TestAgainstIntervals(t *testing.T) {
	for seed := range int64(40) {
		rng := rand.New(rand.NewSource(seed))
		h := New()
		type span struct{ from, to time.Duration }
		spans := map[Port][]span{}
		since := map[Port]time.Duration{}
		var now time.Duration
		for range 400 {
			now += time.Duration(rng.Int63n(int64([]time.Duration{time.Millisecond, time.Second, 20 * time.Second, 20 * time.Minute}[rng.Intn(4)])))
			p, on := port(rng.Intn(12)), rng.Intn(2) == 0
			h.Change(now, p, on)
			if at, is := since[p]; is && !on {
				spans[p] = append(spans[p], span{at, now})
				delete(since, p)
			} else if !is && on {
				since[p] = now
			}
			if rng.Intn(20) == 0 {
				var all []Port
				for p := range since {
					all = append(all, p)
				}
				h.Settle(now, all, 0)
			}
		}
		first := max(0, (now/SlotLength-(Slots-1))*SlotLength)
		v := h.Look(now, nil)
		found := map[Port]time.Duration{}
		for _, w := range v.Ports {
			var sum time.Duration
			for _, ms := range w.Ms {
				sum += time.Duration(ms) * time.Millisecond
			}
			if d := w.Total - sum; d > time.Duration(len(w.Ms))*time.Millisecond || d < -time.Duration(len(w.Ms))*time.Millisecond {
				t.Errorf("seed %d: %v has %v in its slots and %v in all", seed, w.Endpoint, sum, w.Total)
			}
			found[w.Port] = w.Total
		}
		for n := range 12 {
			p := port(n)
			var want time.Duration
			for _, s := range append(spans[p], span{since[p], now}) {
				if _, is := since[p]; !is && s.from == 0 && s.to == now {
					continue // clear at the end
				}
				want += max(0, s.to-max(s.from, first))
			}
			if d := found[p] - want; d > time.Millisecond || d < -time.Millisecond {
				t.Errorf("seed %d: port %d was congested for %v of the hour, found %v", seed, n, want, found[p])
			}
		}
	}
}

// TestBounds: whatever comes and goes, there are so many entries, and no time is lost: it
// is the others'.
func TestBounds(t *testing.T) {
	h := New()
	now := time.Duration(0)
	for n := range 20 * MaxPorts { // each for a second, one after the other
		h.Change(now, port(n), true)
		now += time.Second / 4
		h.Change(now, port(n), false)
	}
	v := h.Look(now, nil)
	if len(h.ports) > MaxPorts || len(v.Ports) > MaxPorts {
		t.Fatalf("%d ports are kept", len(h.ports))
	}
	total := v.Others.Total
	for _, p := range v.Ports {
		total += p.Total
	}
	if want := now; total < want-time.Second || total > want+time.Second {
		t.Errorf("%v of %v is accounted for", total, want)
	}
	// One that is congested for long stays, however many others come.
	h.Change(now, port(99999), true)
	h.Change(now+time.Minute, port(99999), false)
	for n := range 3 * MaxPorts {
		h.Change(now+time.Minute, port(n), true)
		h.Change(now+time.Minute+time.Millisecond, port(n), false)
	}
	if v := h.Look(now+2*time.Minute, nil); v.Ports[0].Port != port(99999) {
		t.Errorf("who was congested longest is gone: %v is first", v.Ports[0])
	}
	// And after an hour of quiet nothing is.
	h.Settle(now+2*time.Hour, nil, 0)
	if v := h.Look(now+2*time.Hour, nil); len(v.Ports) != 0 || len(h.ports) != 0 || v.Others.Total != 0 {
		t.Errorf("an hour later: %+v, %d entries", v, len(h.ports))
	}
}
