package hour

import "time"

// The hour is kept in slots of equal length.
const (
	Slots      = 720
	SlotLength = 5 * time.Second
)

// unit is what the time in a slot is counted in: the ports of a whole node, added,
// fit into a slot's number.
const unit = 100 * time.Microsecond

// A track is how long something was so in each slot of the last hour. at only rises, and
// busy holds the slots up to that of at: those after it are of an hour before and are
// cleared when at comes to them.
type track struct {
	n    int           // how many are so now
	at   time.Duration // what is before it has been added
	rest time.Duration // of what was added: less than a unit
	sum  uint64        // of busy
	busy [Slots]uint32
}

// upTo adds what was so until now.
func (t *track) upTo(now time.Duration) {
	if now-t.at > Slots*SlotLength {
		// Nothing of the time before can be seen: it need not be gone through.
		clear(t.busy[:])
		t.sum, t.at = 0, now-Slots*SlotLength
	}
	for t.at < now {
		end := min(now, (slotOf(t.at)+1)*SlotLength)
		d := time.Duration(t.n)*(end-t.at) + t.rest
		t.add(slotOf(t.at), uint64(d/unit))
		t.rest = d % unit
		if t.at = end; end%SlotLength == 0 {
			i := slotOf(end) % Slots // a slot begins, where one of an hour ago was
			t.sum -= uint64(t.busy[i])
			t.busy[i] = 0
		}
	}
}

// add adds units to a slot, as far as they fit.
func (t *track) add(slot time.Duration, units uint64) {
	b := &t.busy[slot%Slots]
	sum := min(uint64(*b)+units, 1<<32-1)
	t.sum += sum - uint64(*b)
	*b = uint32(sum)
}

// set says how many are so from now on.
func (t *track) set(now time.Duration, n int) {
	t.upTo(now)
	t.n = n
}

// slots lists the slots that are not empty, 0 being the oldest of those that end with the
// one of now, and the milliseconds in each. Less than one is told as one: what was, is seen.
func (t *track) slots(now time.Duration) (slot, ms []uint32) {
	t.upTo(now)
	first := slotOf(now) - (Slots - 1)
	for i := range time.Duration(Slots) {
		if first+i < 0 {
			continue
		}
		if units := t.busy[(first+i)%Slots]; units > 0 {
			slot = append(slot, uint32(i))
			ms = append(ms, max(uint32(time.Duration(units)*unit/time.Millisecond), 1))
		}
	}
	return slot, ms
}

// total is how long it was so in the slots.
func (t *track) total() time.Duration { return time.Duration(t.sum) * unit }

func slotOf(at time.Duration) time.Duration { return at / SlotLength }
