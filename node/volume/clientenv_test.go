package volume

import (
	"errors"
	"testing"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
)

// away is a provider that has no say in where its links are read; at has, and notes where it was asked to.
type (
	away struct{ transport.OneSidedProvider }
	at   struct {
		away
		asked []*reactor.Reactor
		err   error
	}
	namedDomain struct {
		transport.Domain
		name string
	}
)

func (away) NewDomain() transport.Domain { return namedDomain{name: "anywhere"} }

func (p *at) NewDomainOn(r *reactor.Reactor) (transport.Domain, error) {
	p.asked = append(p.asked, r)
	return namedDomain{name: "at home"}, p.err
}

// TestOnePathAtHome holds that one path of a session, and no second one, is read by the thread that serves its devices, where there is such
// a thread and the provider can; every other is read where the provider likes.
func TestOnePathAtHome(t *testing.T) {
	home := &reactor.Reactor{}
	refused := errors.New("no more domains there")
	for _, c := range []struct {
		what  string
		prov  transport.OneSidedProvider
		home  *reactor.Reactor
		lives []bool // at home
		want  bool
	}{
		{"the first path", &at{}, home, nil, true},
		{"the others are elsewhere", &at{}, home, []bool{false, false}, true},
		{"the second path", &at{}, home, []bool{true}, false},
		{"the third path", &at{}, home, []bool{false, true}, false},
		{"no thread serves devices", &at{}, nil, nil, false},
		{"the provider cannot", away{}, home, nil, false},
		{"the provider cannot, and no thread", away{}, nil, nil, false},
		{"the provider refuses", &at{err: refused}, home, nil, false},
	} {
		x := &client{h: &Host{}}
		x.home, x.lives = c.home, map[*life]bool{}
		for _, at := range c.lives {
			x.lives[&life{home: at}] = true
		}
		d, atHome := x.newDomain(c.prov)
		name := "anywhere"
		if c.want {
			name = "at home"
		}
		if got := d.(namedDomain).name; atHome != c.want || got != name {
			t.Errorf("%s: at home %v with a domain %s, want %s", c.what, atHome, got, name)
		}
		if p, ok := c.prov.(*at); ok && c.want && (len(p.asked) != 1 || p.asked[0] != home) {
			t.Errorf("%s: the provider was asked for %v", c.what, p.asked)
		}
	}
}
