package rnbd

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// answering is a session with a server that answers what it is told to.
type answering struct {
	c     *Client
	queue []*rtrs.Req
	ver   uint8
	rsp   []byte
	errno uint16 // of every third answer
	n     int
}

func (a *answering) Submit(now time.Duration, r *rtrs.Req) error {
	a.queue = append(a.queue, r)
	return nil
}
func (a *answering) Resume(now time.Duration)                              {}
func (a *answering) Cancel(now time.Duration, r *rtrs.Req, err error) bool { return false }
func (a *answering) Recall(now time.Duration, r *rtrs.Req, err error) bool { return false }
func (a *answering) MaxIO() int                                            { return 64 << 10 }
func (a *answering) Each(f func(r *rtrs.Req)) {
	for _, r := range a.queue {
		f(r)
	}
}

func (a *answering) run(t testing.TB) {
	buf := make([]*blk.Request, 0, 8)
	for steps := 0; ; steps++ {
		if steps > 10000 {
			t.Fatal("it does not come to rest")
		}
		batch := a.c.Finished(buf)
		blk.Complete(batch)
		if len(a.queue) == 0 {
			if len(batch) == 0 {
				return
			}
			continue
		}
		r := a.queue[0]
		a.queue = a.queue[1:]
		r.Err = nil
		if a.n++; a.errno != 0 && a.n%3 == 0 {
			r.Err = syscall.Errno(a.errno & rtrswire.MaxErrno)
		} else if k, _ := rnbdwire.Kind(r.Usr); k == rnbdwire.SessInfo {
			copy(r.Data, rnbdwire.AppendSessInfoExt(nil, rnbdwire.SessInfoRsp, a.ver, 255))
		} else if k != rnbdwire.IOType {
			clear(r.Data[copy(r.Data, a.rsp):])
		}
		a.c.Done(0, r)
	}
}

// TestServerOfVersionZero: whatever a server answers to SESS_INFO is taken, except version 0,
// which no RNBD has: then every volume of the session is refused with what is wrong.
func TestServerOfVersionZero(t *testing.T) {
	for _, x := range []struct {
		ver  uint8
		want string
	}{{0, "the server speaks RNBD of version 0"}, {1, ""}, {2, ""}, {255, ""}} {
		a := &answering{ver: x.ver}
		good := describe(&cached, 7)
		a.rsp = good.Append(nil)
		e := &end{w: &world{t: t}, maxIO: 64 << 10, mapped: map[*Volume]error{}, unmapped: map[*Volume]bool{}}
		a.c = NewClient(ClientConfig{}, e, a)
		a.c.Up(0)
		v, err := a.c.Map(0, "d", rw)
		if err != nil {
			t.Fatal(err)
		}
		a.run(t)
		switch why := v.Err(); {
		case x.want == "" && (why != nil || stateOf(v) != Open):
			t.Errorf("version %d: %v, %v", x.ver, stateOf(v), why)
		case x.want != "" && (why == nil || !strings.Contains(why.Error(), x.want)):
			t.Errorf("version %d: %v, %v; want %q", x.ver, stateOf(v), why, x.want)
		}
	}
}
