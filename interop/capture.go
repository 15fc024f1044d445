package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	captureFrames = 200000  // kept: the last ones
	captureBytes  = 1 << 16 // of each: the guest sends unsegmented ones
)

// Capture keeps the last frames seen on a namespace's host end, to be written
// out as a pcap file when a test fails.
type Capture struct {
	fd   int
	done sync.WaitGroup
	stop func()

	mu     sync.Mutex
	frames []capturedFrame // guarded by mu; a ring once full
	next   int             // guarded by mu
}

type capturedFrame struct {
	at   time.Time
	size int
	data []byte
}

// StartCapture begins to watch. Stop must be called.
func StartCapture(ns *Netns) (*Capture, error) {
	c := &Capture{fd: -1}
	err := ns.Do(func() error {
		link, err := net.InterfaceByName(ns.Host)
		if err != nil {
			return err
		}
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		// So that the reader sees Stop.
		tick := unix.Timeval{Usec: 200_000}
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tick); err != nil {
			return err
		}
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: link.Index})
	})
	if err != nil {
		if c.fd >= 0 {
			_ = unix.Close(c.fd)
		}
		return nil, fmt.Errorf("capture: %w", err)
	}
	stop := make(chan struct{})
	c.done.Go(func() { c.read(stop) })
	c.stop = sync.OnceFunc(func() {
		close(stop)
		c.done.Wait()
		_ = unix.Close(c.fd)
	})
	return c, nil
}

// Stop ends the capture; what it holds can still be saved.
func (c *Capture) Stop() { c.stop() }

func (c *Capture) read(stop <-chan struct{}) {
	buf := make([]byte, 1<<17)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		f := capturedFrame{time.Now(), n, append([]byte(nil), buf[:min(n, captureBytes)]...)}
		c.mu.Lock()
		if len(c.frames) < captureFrames {
			c.frames = append(c.frames, f)
		} else {
			c.frames[c.next] = f
			c.next = (c.next + 1) % captureFrames
		}
		c.mu.Unlock()
	}
}

// Save writes the frames kept as a pcap file.
func (c *Capture) Save(path string) error {
	le := binary.LittleEndian
	out := le.AppendUint32(nil, 0xa1b2c3d4)
	out = le.AppendUint16(out, 2)
	out = le.AppendUint16(out, 4)
	out = append(out, make([]byte, 8)...)
	out = le.AppendUint32(out, 1<<17)
	out = le.AppendUint32(out, 1) // Ethernet
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.frames {
		f := c.frames[(c.next+i)%len(c.frames)]
		out = le.AppendUint32(out, uint32(f.at.Unix()))
		out = le.AppendUint32(out, uint32(f.at.Nanosecond()/1000))
		out = le.AppendUint32(out, uint32(len(f.data)))
		out = le.AppendUint32(out, uint32(f.size))
		out = append(out, f.data...)
	}
	return os.WriteFile(path, out, 0o644)
}
