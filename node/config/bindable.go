package config

import "math/bits"

// Bindable is every port that MayBind allows a client, as ranges in order.
func (c *Config) Bindable(id Identity) []PortRange {
	var may portSet
	may.put(0, 1<<16-1, true)
	if id.UID != 0 || !id.known() {
		may.put(0, max(c.RDS.LowPortsBelow, 1)-1, false)
		for i := range c.Ports {
			if g := &c.Ports[i]; g.Exclusive {
				may.put(g.Range.First, g.Range.Last, false)
			}
		}
		for i := range c.Ports { // whoever else has them
			if g := &c.Ports[i]; g.names(id) {
				may.put(g.Range.First, g.Range.Last, true)
			}
		}
	}
	may.put(0, 1, false) // nobody's
	return may.ranges()
}

// portSet is a set of ports, a bit each: thousands of ranges that lie over each other cost
// little.
type portSet [1 << 16 / 64]uint64

func (s *portSet) put(first, last uint16, in bool) {
	for w := first / 64; w <= last/64; w++ {
		mask := ^uint64(0)
		if w == first/64 {
			mask <<= first % 64
		}
		if w == last/64 {
			mask &= ^uint64(0) >> (63 - last%64)
		}
		if in {
			s[w] |= mask
		} else {
			s[w] &^= mask
		}
	}
}

// next is the first port from p on that is in the set, or with ones that is not; 65536: there is none.
func (s *portSet) next(p int, ones uint64) int {
	for w := p / 64; w < len(s); w++ {
		x := s[w] ^ ones
		if w == p/64 {
			x &= ^uint64(0) << (p % 64)
		}
		if x != 0 {
			return 64*w + bits.TrailingZeros64(x)
		}
	}
	return 1 << 16
}

func (s *portSet) ranges() (list []PortRange) {
	for end := 0; ; {
		first := s.next(end, 0)
		if first == 1<<16 {
			return list
		}
		end = s.next(first, ^uint64(0))
		list = append(list, PortRange{uint16(first), uint16(end - 1)})
	}
}
