package roce

import "math/rand"

// numbers draws the numbers of queue pairs: a count, encrypted, so that one is hard to guess
// as far as rnd is, and comes again only after all others. A packet of a connection that is
// over is then not taken for one of a connection that has just begun.
type numbers struct {
	secret [4]uint32
	count  uint32
}

func newNumbers(rnd *rand.Rand) (n numbers) {
	n.count = rnd.Uint32()
	for i := range n.secret {
		n.secret[i] = rnd.Uint32()
	}
	return n
}

// draw is the next number that is neither taken nor one of connection managers.
func (n *numbers) draw(taken func(uint32) bool) uint32 {
	for {
		n.count++
		if v := n.encrypt(n.count & maxNumber); v > 1 && !taken(v) {
			return v
		}
	}
}

// encrypt is a permutation of 24 bits: a Feistel network of four rounds.
func (n *numbers) encrypt(count uint32) uint32 {
	const half, mask = psnBits / 2, 1<<(psnBits/2) - 1
	left, right := count>>half, count&mask
	for _, s := range n.secret {
		v := (right ^ s) * 0x9e3779b1
		v = (v ^ v>>15 + s) * 0x85ebca6b
		left, right = right, left^v>>(32-half)
	}
	return left<<half | right
}
