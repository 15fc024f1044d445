package rdsd

import (
	"errors"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

func TestParsePathSpec(t *testing.T) {
	for s, want := range map[string]PathSpec{
		"10.0.0.7":                             {Dst: "10.0.0.7"},
		"10.0.0.1,10.0.0.7:1234":               {Src: "10.0.0.1", Dst: "10.0.0.7:1234"},
		",10.0.0.7":                            {Dst: "10.0.0.7"},
		"10.0.0.1, 10.0.0.7":                   {Src: "10.0.0.1", Dst: "10.0.0.7"},
		"tcp:10.0.0.1,10.0.0.7":                {Src: "10.0.0.1", Dst: "10.0.0.7", Transport: "tcp"},
		"ib:10.0.0.1,10.0.0.7":                 {Src: "10.0.0.1", Dst: "10.0.0.7", Transport: "ib"},
		"ib:store":                             {Dst: "store", Transport: "ib"},
		"ib:[fd00::7]:1234":                    {Dst: "[fd00::7]:1234", Transport: "ib"},
		"ip:10.0.0.1@ip:10.0.0.7":              {Src: "10.0.0.1", Dst: "10.0.0.7", Transport: "ib"},
		"ip:10.0.0.7":                          {Dst: "10.0.0.7", Transport: "ib"},
		"gid:::ffff:10.0.0.1,gid:::ffff:a00:7": {Src: "10.0.0.1", Dst: "10.0.0.7", Transport: "ib"},
		"gid:fd00::1@gid:fd00::7":              {Src: "fd00::1", Dst: "fd00::7", Transport: "ib"},
		"ib:gid:fd00::7":                       {Dst: "fd00::7", Transport: "ib"},
	} {
		got, err := ParsePathSpec(s)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", s, got, err, want)
			continue
		}
		if again, err := ParsePathSpec(got.String()); err != nil || again != got {
			t.Errorf("%q, read again: %+v, %v; want %+v", got.String(), again, err, got)
		}
	}
	for _, s := range []string{"", "ib:", "10.0.0.1,", "a,b,c", "a@b@c", "a b", "a/b", "gid:10.0.0.7", "gid:x", "gid:::", "tcp:ip:10.0.0.7", "tcp:gid:fd00::7"} {
		if p, err := ParsePathSpec(s); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%q: %+v, %v", s, p, err)
		}
	}
}
