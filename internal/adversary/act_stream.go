package adversary

import (
	"encoding/binary"
	"io"
	"math"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// streamActs are hostile in HTTP/2 and in gRPC.
var streamActs = []Act{
	{"grpc/silent", 2, streamSilent},
	{"grpc/half-messages", 3, streamHalf},
	{"grpc/resets", 3, streamResets},
	{"grpc/huge-headers", 2, streamHuge},
	{"grpc/continuations", 2, streamContinuations},
	{"grpc/unknown-methods", 2, streamUnknown},
	{"grpc/window-games", 2, streamWindows},
	{"grpc/pings", 2, streamPings},
	{"grpc/never-read", 3, streamNeverRead},
	{"grpc/noise", 2, streamNoise},
	{"grpc/bad-batches", 3, streamBadBatches},
	{"grpc/bind-storm", 2, streamBindStorm},
}

// streamSilent connects as often as it may, and says nothing or half a greeting.
func streamSilent(s *Stage) error {
	for !s.Over() {
		c, err := s.Unix()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		io.WriteString(c, http2.ClientPreface[:s.IntN(len(http2.ClientPreface))])
	}
	return nil
}

// streamHalf announces messages of 4 MiB on as many streams as it gets, and
// sends all of them but the end.
func streamHalf(s *Stage) error {
	for range 8 {
		h, err := s.DialStream()
		if err != nil || s.Over() {
			break
		}
		s.Go(func() { h.Drain(false) })
		var open []uint32
		for range 128 {
			id, err := h.Call(oneOf(s, methodOpen, methodQueue))
			if err != nil {
				break
			}
			open = append(open, id)
			h.WriteData(id, false, binary.BigEndian.AppendUint32([]byte{0}, 4<<20-1))
		}
		junk := make([]byte, 16<<10)
		for range 3 {
			for _, id := range open {
				if h.WriteData(id, false, junk) != nil {
					break
				}
			}
		}
	}
	s.Hold(time.Second)
	return nil
}

// streamResets opens streams and resets them at once.
func streamResets(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		s.Go(func() { h.Drain(false) })
		for range 5000 {
			id, err := h.Call(oneOf(s, methodOpen, methodQueue, methodWatch, methodVolumes))
			if err != nil || s.Over() {
				break
			}
			if s.IntN(4) == 0 {
				h.WriteData(id, true, []byte{0, 0, 0, 0, 0})
			}
			h.WriteRSTStream(id, http2.ErrCode(s.IntN(14)))
		}
		h.Close()
	}
	return nil
}

func streamHuge(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		s.Go(func() { h.Drain(true) })
		for range 20 {
			if _, err := h.Call(methodOpen, hpack.HeaderField{Name: "x", Value: strings.Repeat("a", s.IntN(15<<10))}); err != nil {
				break
			}
		}
		s.Hold(5 * time.Millisecond)
		h.Close()
	}
	return nil
}

// streamContinuations sends a header that does not end.
func streamContinuations(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		s.Go(func() { h.Drain(true) })
		h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.headers(methodOpen)})
		more := h.headers(methodOpen, hpack.HeaderField{Name: "y", Value: strings.Repeat("b", 8000), Sensitive: true})
		for range 5000 {
			if h.WriteContinuation(1, false, more) != nil || s.Over() {
				break
			}
		}
		h.Close()
	}
	return nil
}

func streamUnknown(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		s.Go(func() { h.Drain(true) })
		for range 200 {
			id, err := h.Call(oneOf(s, "/", "", "/rdsd.v1.Datagrams/", "/rdsd.v1.Nothing/Open", strings.Repeat("/a", 100), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Watch"))
			if err != nil {
				break
			}
			h.WriteData(id, s.IntN(2) == 0, s.noise(make([]byte, s.IntN(100))))
		}
		h.Close()
	}
	return nil
}

// streamWindows grants windows of nothing, of a byte and of too much.
func streamWindows(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		s.Go(func() { h.Drain(true) })
		for range 50 {
			id, err := h.Call(oneOf(s, methodOpen, methodQueue, methodWatch))
			if err != nil {
				break
			}
			h.WriteData(id, false, Message(bindMessage(s.bind(0, 0))))
			for range 20 {
				h.WriteWindowUpdate(id, 1)
			}
			h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(s.IntN(3))},
				http2.Setting{ID: http2.SettingHeaderTableSize, Val: s.Uint32() >> s.IntN(32)})
			if s.IntN(30) == 0 {
				h.WriteWindowUpdate(oneOf(s, 0, id), math.MaxInt32)
			}
		}
		s.Hold(10 * time.Millisecond)
		h.Close()
	}
	return nil
}

// streamPings floods with pings and settings and reads no answer.
func streamPings(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		h.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		for range 100_000 {
			if s.IntN(2) == 0 {
				err = h.WritePing(false, [8]byte{})
			} else {
				err = h.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: s.Uint32()})
			}
			if err != nil || s.Over() {
				break
			}
		}
		h.Close()
	}
	return nil
}

// streamNeverRead binds sockets, sends to them, asks and watches, and reads
// nothing of what comes back.
func streamNeverRead(s *Stage) error {
	for range 8 {
		h, err := s.DialStream(http2.Setting{ID: http2.SettingInitialWindowSize, Val: math.MaxInt32})
		if err != nil || s.Over() {
			break
		}
		h.WriteWindowUpdate(0, math.MaxInt32-65535)
		h.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		for i := range 60 {
			method := oneOf(s, methodOpen, methodOpen, methodQueue, methodWatch, methodVolumes)
			id, err := h.Call(method)
			if err != nil {
				break
			}
			if method != methodOpen {
				h.WriteData(id, true, []byte{0, 0, 0, 0, 2, 8, 1})
				continue
			}
			port := uint16(40000 + s.IntN(2000))
			h.WriteData(id, false, Message(bindMessage(s.bind(port, 0))))
			h.WriteData(id, false, Message(monitorMessage(math.MaxUint64)))
			for n := range uint64(20) {
				h.WriteData(id, false, Message(sendMessage(batch(n, netip.AddrPortFrom(s.Daemon, port), 8, 1000, i&1 == 0))))
				h.WriteData(id, false, Message(congestedMessage(n, s.somewhere())))
			}
		}
	}
	s.Hold(500 * time.Millisecond)
	return nil
}

// streamNoise sends frames of random types, flags and lengths.
func streamNoise(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		h.AllowIllegalWrites = true
		s.Go(func() { h.Drain(false) })
		for range 1 + s.IntN(100) {
			if h.WriteRawFrame(http2.FrameType(s.IntN(12)), http2.Flags(s.Uint32()), s.Uint32()>>s.IntN(32), s.noise(make([]byte, s.IntN(300)))) != nil {
				break
			}
		}
		s.Hold(time.Millisecond)
		h.Close()
	}
	return nil
}

// streamBadBatches sends messages that are wrong, or are none, on sockets that
// are bound or not.
func streamBadBatches(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		s.Go(func() { h.Drain(true) })
		for range 10 {
			id, err := h.Call(methodOpen)
			if err != nil {
				break
			}
			if s.IntN(5) > 0 {
				h.WriteData(id, false, Message(bindMessage(s.bind(0, 0))))
			}
			for n := range uint64(1 + s.IntN(10)) {
				b := Message(s.badBatch(n))
				if s.IntN(4) == 0 && len(b) > 6 {
					s.noise(b[5+s.IntN(len(b)-5):]) // protobuf that is none
				}
				for len(b) > 0 { // in frames of what HTTP/2 takes
					k := min(len(b), 16<<10)
					if h.WriteData(id, false, b[:k]) != nil {
						break
					}
					b = b[k:]
				}
			}
		}
		s.Hold(2 * time.Millisecond)
		h.Close()
	}
	return nil
}

// streamBindStorm binds and resets, a stream each.
func streamBindStorm(s *Stage) error {
	for !s.Over() {
		h, err := s.DialStream()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		s.Go(func() { h.Drain(true) })
		for range 100 {
			id, err := h.Call(methodOpen)
			if err != nil || s.Over() {
				break
			}
			h.WriteData(id, false, Message(bindMessage(s.bind(0, 0))))
			if s.IntN(2) == 0 {
				s.Pause(time.Millisecond)
			}
			h.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		h.Close()
	}
	return nil
}
