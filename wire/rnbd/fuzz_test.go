package rnbd_test

import (
	"math/rand"
	"testing"

	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// As in wire/fuzz_test.go: each target states one property, and TestRandomBytes
// runs the same ones. What a parser accepts is encoded to bytes that it reads
// as the same, and whose bytes with a meaning are those that came.

func messageProperty(t testing.TB, b []byte) {
	k, err := rnbdwire.Kind(b)
	if err != nil {
		return
	}
	_ = k.String()
	for _, typ := range []rnbdwire.Type{rnbdwire.SessInfo, rnbdwire.SessInfoRsp} {
		if ver, err := rnbdwire.ParseSessInfo(b, typ); err == nil {
			wiretest.SameBut(t, b, rnbdwire.AppendSessInfo(nil, typ, ver), 2, 4, 5, 36)
		}
	}
	if o, err := rnbdwire.ParseOpen(b); err == nil {
		out, err := o.Append(nil)
		if again, err2 := rnbdwire.ParseOpen(out); again != o || err != nil || err2 != nil {
			t.Fatalf("%+v came back as %+v, %v, %v", o, again, err, err2)
		}
		wiretest.SameBut(t, b, out, 2, 4, 5, 6, 6+len(o.Name), 264)
	}
	if r, err := rnbdwire.ParseOpenRsp(b); err == nil {
		wiretest.SameBut(t, b, r.Append(nil), 2, 4, 46, 56)
	}
	if id, err := rnbdwire.ParseClose(b); err == nil {
		wiretest.SameBut(t, b, rnbdwire.AppendClose(nil, id), 2, 4)
	}
	if o, err := rnbdwire.ParseIO(b); err == nil {
		_ = o.String()
		out := o.Append(nil)
		if again, err := rnbdwire.ParseIO(out); again != o || err != nil {
			t.Fatalf("%+v came back as %+v, %v", o, again, err)
		}
		if len(b) < len(out) {
			out = out[:24]
		}
		wiretest.SameBut(t, b, out, 2, 4, 26, 32)
		if err := o.Check(rtrswire.Read, o.Size); err == nil && o.Op() != rnbdwire.Read && o.Op() != rnbdwire.Flush {
			t.Fatalf("%v passes as a read", &o)
		}
	}
}

// messages are the answers of the file and the user headers of the requests.
func messages(t testing.TB) (all [][]byte) {
	for _, v := range vectors(t) {
		all = append(all, v.Hex)
	}
	for _, v := range requests(t) {
		all = append(all, v.Hex)
	}
	return all
}

func FuzzMessage(f *testing.F) {
	for _, b := range messages(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { messageProperty(t, b) })
}

// TestRandomBytes: random changes to every vector, which get further than
// bytes without any form do.
func TestRandomBytes(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for round := range 60 {
		for _, v := range messages(t) {
			messageProperty(t, wiretest.Changed(rng, v, rng.Intn(4)*min(round, 1)))
		}
	}
}
