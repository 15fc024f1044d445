package client

import (
	"sync"

	"github.com/rdsd/rdsd/internal/buf"
)

// bufList keeps buffers for the next large payloads.
type bufList struct {
	mu   sync.Mutex
	free []*buf.Buf // guarded by mu
}

func (l *bufList) get() *buf.Buf {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		b := l.free[n-1]
		l.free = l.free[:n-1]
		return b
	}
	return new(buf.Buf)
}

func (l *bufList) put(b *buf.Buf) {
	l.mu.Lock()
	l.free = append(l.free, b)
	l.mu.Unlock()
}
