package killtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("RDSD_KILLTEST_ROLE"); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// roles of a client process. They never end by themselves.
var roles = map[string]func() error{"sender": sender, "hoarder": hoarder}

// sign makes datagram number n of a flow, size bytes at least.
func sign(flow uint32, n uint64, size int) []byte {
	p := make([]byte, max(size, 16))
	binary.BigEndian.PutUint32(p[4:], flow)
	binary.BigEndian.PutUint64(p[8:], n)
	for i := 16; i < len(p); i++ {
		p[i] = byte(uint64(i) * (n + 1))
	}
	binary.BigEndian.PutUint32(p, crc32.ChecksumIEEE(p[4:]))
	return p
}

// read takes a payload apart and checks its hash.
func read(p []byte) (flow uint32, n uint64, err error) {
	if len(p) < 16 || crc32.ChecksumIEEE(p[4:]) != binary.BigEndian.Uint32(p) {
		return 0, 0, fmt.Errorf("a payload of %d bytes that nobody signed", len(p))
	}
	return binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint64(p[8:]), nil
}

func bindHere() (*rdsd.Socket, error) {
	client, err := rdsd.Dial(os.Getenv("RDSD_SOCKET"), rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddr(os.Getenv("RDSD_KILLTEST_ADDR"))
	if err != nil {
		return nil, err
	}
	return client.Bind(context.Background(), netip.AddrPortFrom(addr, 0))
}

// sender sends signed datagrams in all the ways there are, until it is killed.
func sender() error {
	s, err := bindHere()
	if err != nil {
		return err
	}
	dst, err := netip.ParseAddrPort(os.Getenv("RDSD_KILLTEST_TO"))
	if err != nil {
		return err
	}
	flow, err := strconv.ParseUint(os.Getenv("RDSD_KILLTEST_FLOW"), 10, 32)
	if err != nil {
		return err
	}
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(flow, 1))
	sizes := []int{16, 16, 64, 64, 500, 4000, 20_000, 200_000}
	for n := uint64(0); ; {
		size := sizes[rng.IntN(len(sizes))]
		switch rng.IntN(3) {
		case 0:
			if err := s.Send(ctx, dst, sign(uint32(flow), n, size)); err != nil {
				return err
			}
			n++
		case 1:
			batch := make([]rdsd.Datagram, 1+rng.IntN(64))
			for i := range batch {
				if rng.IntN(2) == 0 {
					size = sizes[rng.IntN(5)]
				}
				batch[i] = rdsd.Datagram{Addr: dst, Payload: sign(uint32(flow), n, min(size, 4000))}
				n++
			}
			if _, err := s.SendBatch(ctx, batch); err != nil {
				return err
			}
		case 2:
			p := sign(uint32(flow), n, size)
			slot, err := s.Reserve(ctx, dst, len(p))
			if err != nil {
				return err
			}
			copy(slot.Bytes(), p)
			if _, err := slot.Commit(len(p)); err != nil {
				return err
			}
			n++
		}
	}
}

// hoarder takes datagrams and never gives them back, until it is killed.
func hoarder() error {
	s, err := bindHere()
	if err != nil {
		return err
	}
	fmt.Println(s.LocalAddr())
	into := make([]rdsd.Datagram, 64)
	for {
		if _, _, err := s.Borrow(context.Background(), into); err != nil {
			return err
		}
	}
}
