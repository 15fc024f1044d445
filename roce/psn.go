package roce

// PSN is a packet sequence number: 24 bits that wrap. So are the numbers of messages (MSN)
// and of queue pairs, but the latter are only compared for equality.
type PSN uint32

const (
	psnBits = 24
	psnMask = 1<<psnBits - 1
)

// Add is the number n packets after p, or before it if n is negative.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & psnMask }

// Sub is how many packets p is after q: from -2^23 to 2^23 - 1. Of two numbers that are half
// of all numbers apart each is said to be before the other, so windows stay well below that.
func (p PSN) Sub(q PSN) int {
	const spare = 32 - psnBits // the sign of 24 bits goes to where int32 has it
	return int(int32((p-q)<<spare) >> spare)
}

// Within reports whether p is one of the n numbers from first on.
func (p PSN) Within(first PSN, n int) bool { return int((p-first)&psnMask) < n }
