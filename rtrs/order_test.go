package rtrs

import (
	"errors"
	"testing"
)

// TestOrderTable holds what each order makes of a path in each state, and that it is refused where the table says so: after the order alone where
// there is no link, and when the links are closed where there are.
func TestOrderTable(t *testing.T) {
	type row struct {
		from  State
		want  State // the goal before
		order order
		now   State // after the order
		then  State // after its links are closed
		err   error
	}
	for _, r := range []row{
		{Reconnecting, Reconnecting, disconnect, Closed, Closed, nil},
		{Reconnecting, Reconnecting, remove, Dead, Dead, nil},
		{Reconnecting, Reconnecting, reconnect, Connecting, Connecting, nil},
		{Connecting, Reconnecting, disconnect, Closing, Closed, nil},
		{Connecting, Reconnecting, remove, Closing, Dead, nil},
		{Connecting, Reconnecting, reconnect, Connecting, Connecting, ErrState},
		{Connected, Reconnecting, disconnect, Closing, Closed, nil},
		{Connected, Reconnecting, remove, Closing, Dead, nil},
		{Connected, Reconnecting, reconnect, Closing, Reconnecting, nil},
		{Closing, Reconnecting, disconnect, Closing, Closed, nil},
		{Closing, Reconnecting, remove, Closing, Dead, nil},
		{Closing, Reconnecting, reconnect, Closing, Reconnecting, nil},
		{Closing, Closed, disconnect, Closing, Closed, ErrState},
		{Closing, Closed, remove, Closing, Dead, nil},
		{Closing, Closed, reconnect, Closing, Reconnecting, nil},
		{Closing, Dead, disconnect, Closing, Dead, ErrState},
		{Closing, Dead, remove, Closing, Dead, ErrState},
		{Closing, Dead, reconnect, Closing, Dead, ErrState},
		{Closed, Reconnecting, disconnect, Closed, Closed, nil}, // out of attempts
		{Closed, Closed, disconnect, Closed, Closed, ErrState},
		{Closed, Closed, remove, Dead, Dead, nil},
		{Closed, Closed, reconnect, Connecting, Connecting, nil},
		{Dead, Dead, disconnect, Dead, Dead, ErrState},
		{Dead, Dead, remove, Dead, Dead, ErrState},
		{Dead, Dead, reconnect, Dead, Dead, ErrState},
	} {
		p := pathIn(t, r.from, r.want)
		c := p.c
		var err error
		switch r.order {
		case disconnect:
			err = c.Disconnect(c.now, p)
		case remove:
			err = c.Remove(c.now, p)
		case reconnect:
			err = c.Reconnect(c.now, p)
		}
		if !errors.Is(err, r.err) || (err == nil) != (r.err == nil) || p.State() != r.now {
			t.Errorf("%v, to be %v: %v makes it %v, %v; want %v, %v", r.from, r.want, r.order, p.State(), err, r.now, r.err)
			continue
		}
		p.Gone(c.now)
		if p.State() != r.then {
			t.Errorf("%v, to be %v: after %v and the end of its links it is %v, want %v", r.from, r.want, r.order, p.State(), r.then)
		}
	}
	for s := range numStates {
		for o := range numOrders {
			if x := &orderTable[s][o]; x.text == "" {
				t.Errorf("%v, %v: nobody has thought of it", s, o)
			}
		}
	}
}

// pathIn returns a path that stands in a state, with a goal.
func pathIn(t *testing.T, s, want State) *ClientPath {
	t.Helper()
	cfg := ClientConfig{}
	if s == Closed && want == Reconnecting {
		cfg.MaxReconnects = 1
	}
	f := newFakeClient(t, cfg)
	p := f.add(1)
	if s != Connecting && cfg.MaxReconnects == 0 {
		f.connect(p, fourChunks, ours, 7)
	}
	if s == Connected || s == Connecting {
		return p
	}
	switch want {
	case Closed:
		f.c.Disconnect(f.c.now, p)
	case Dead:
		f.c.Remove(f.c.now, p)
	default:
		p.Lost(f.c.now, 0, errors.New("lost"))
	}
	if s != Closing {
		p.Gone(f.c.now)
	}
	if p.State() != s || p.want != want {
		t.Fatalf("the path is %v, to be %v; want %v, %v", p.State(), p.want, s, want)
	}
	return p
}
