package access

import (
	"sync"
	"testing"
	"testing/synctest"
)

// heldClose is a connection whose close takes until it is let go.
type heldClose struct {
	begun, goes chan struct{}
	once        sync.Once
}

func newHeldClose() *heldClose {
	return &heldClose{begun: make(chan struct{}), goes: make(chan struct{})}
}

func (c *heldClose) Close() error { close(c.begun); <-c.goes; return nil }

func (c *heldClose) letGo() { c.once.Do(func() { close(c.goes) }) }

func (c *heldClose) begins() bool {
	synctest.Wait()
	select {
	case <-c.begun:
		return true
	default:
		return false
	}
}

// TestClosers: of a user one connection is closed at a time, in order, and who waits for that holds up
// no other user, until there are as many users as may be.
func TestClosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewClosers(nil, 2)
		var c [5]*heldClose
		for i := range c {
			c[i] = newHeldClose()
		}
		begun := func(want ...bool) {
			t.Helper()
			for i, w := range want {
				if c[i].begins() != w {
					t.Errorf("number %d begun: %v", i, !w)
				}
			}
		}
		for range 3 {
			l.Close(7, newClosed())
		}
		synctest.Wait()
		if n := l.Waiting(); n != 0 || len(l.of) != 0 {
			t.Errorf("%d wait of %d users", n, len(l.of))
		}
		l.Close(1, c[0])
		l.Close(1, c[1])
		l.Close(2, c[2])
		l.Close(2, c[3])
		l.Close(3, c[4])
		begun(true, false, true, false, false)
		if n := l.Waiting(); n != 3 {
			t.Errorf("%d wait", n)
		}
		c[1].letGo() // when its turn comes
		c[4].letGo()
		c[0].letGo()
		begun(true, true, true, false, true)
		c[2].letGo()
		begun(true, true, true, true, true)
		c[3].letGo()
		synctest.Wait()
		if n := l.Waiting(); n != 0 || len(l.of) != 0 || l.running != 0 {
			t.Errorf("%d wait of %d users, %d are being closed", n, len(l.of), l.running)
		}
	})
}

func newClosed() *heldClose {
	c := newHeldClose()
	c.letGo()
	return c
}
