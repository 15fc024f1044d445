package rdsdv1

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rdsd/rdsd/rdserr"
)

func TestErrnoTableMatchesSentinels(t *testing.T) {
	table := errnos()
	if got, want := len(table.rows), len(rdserr.All); got != want {
		t.Errorf("errno.json has %d rows, rdserr.All %d", got, want)
	}
	for _, e := range rdserr.All {
		row, ok := table.byErrno[e.Errno]
		if !ok {
			t.Errorf("%s (%d) is not in errno.json", e.Name, e.Errno)
			continue
		}
		if row.Name != e.Name || row.Text != e.Text {
			t.Errorf("errno %d: table says %q, %q; rdserr says %q, %q", e.Errno, row.Name, row.Text, e.Name, e.Text)
		}
		if row.Code == codes.OK || row.Code == codes.Unknown {
			t.Errorf("%s has code %v", row.Symbol, row.Code)
		}
	}
}

func TestEveryCodeHasOneErrno(t *testing.T) {
	seen := map[codes.Code]string{}
	for _, row := range errnos().rows {
		for _, c := range row.DefaultFor {
			if other, ok := seen[c]; ok {
				t.Errorf("%v is the default of %s and %s", c, other, row.Symbol)
			}
			seen[c] = row.Symbol
		}
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		if seen[c] == "" {
			t.Errorf("no errno for a bare %v", c)
		}
	}
}

func TestErrnoRoundTrip(t *testing.T) {
	for _, e := range rdserr.All {
		sent := fmt.Errorf("send 10.0.0.1:5: %w", rdserr.With(e, "why it is %s", e.Name))
		got := ErrorFromStatus(StatusFromErrno(sent).Err())
		if !errors.Is(got, e) || !errors.Is(got, e.Errno) {
			t.Errorf("%s came back as %v (errno %d)", e.Name, got, rdserr.Errno(got))
		}
		if got.Error() != sent.Error() {
			t.Errorf("text %q came back as %q", sent, got)
		}
	}
}

// The bytes that sdk/python/tests/test_errors.py decodes.
func TestErrnoDetailBytes(t *testing.T) {
	const want = "0808120466756c6c1a490a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e" +
		"4572726f72496e666f121d0a07454e4f425546531204726473641a0c0a056572726e6f1203313035"
	st := StatusFromErrno(rdserr.With(rdserr.ErrCongested, "full"))
	got, err := proto.MarshalOptions{Deterministic: true}.Marshal(st.Proto())
	if err != nil {
		t.Fatal(err)
	}
	if hex.EncodeToString(got) != want {
		t.Errorf("got %x\nwant %s", got, want)
	}
}

func TestErrnoOutsideTable(t *testing.T) {
	st := StatusFromErrno(syscall.EXDEV)
	if st.Code() != codes.Unknown {
		t.Errorf("code %v, want Unknown", st.Code())
	}
	if got := ErrorFromStatus(st.Err()); !errors.Is(got, syscall.EXDEV) || got.Error() != syscall.EXDEV.Error() {
		t.Errorf("EXDEV came back as %v", got)
	}
	st = StatusFromErrno(fmt.Errorf("remap v1: there is none: %w", otherDetail{syscall.EXDEV}))
	if got := ErrorFromStatus(st.Err()); !errors.Is(got, syscall.EXDEV) || got.Error() != "remap v1: there is none: it is elsewhere" {
		t.Errorf("EXDEV with particulars came back as %v", got)
	}
}

// otherDetail is an errno with words of its own.
type otherDetail struct{ syscall.Errno }

func (otherDetail) Error() string   { return "it is elsewhere" }
func (d otherDetail) Unwrap() error { return d.Errno }

func TestContextErrors(t *testing.T) {
	if c := StatusFromErrno(context.Canceled).Code(); c != codes.Canceled {
		t.Errorf("context.Canceled is %v", c)
	}
	if c := StatusFromErrno(context.DeadlineExceeded).Code(); c != codes.DeadlineExceeded {
		t.Errorf("context.DeadlineExceeded is %v", c)
	}
}

func TestStatusWithoutDetail(t *testing.T) {
	for code, want := range map[codes.Code]*rdserr.Error{
		codes.Unavailable:       rdserr.ErrShutdown,
		codes.ResourceExhausted: rdserr.ErrNoMemory,
		codes.Unauthenticated:   rdserr.ErrPerm,
		codes.Unknown:           rdserr.ErrIO,
	} {
		if got := ErrorFromStatus(status.Error(code, "")); !errors.Is(got, want) || got.Error() != want.Text {
			t.Errorf("%v became %v, want %v", code, got, want)
		}
	}
}

func TestStatusKeepsStatusErrors(t *testing.T) {
	in := status.Error(codes.NotFound, "no such service")
	if st := StatusFromErrno(fmt.Errorf("call: %w", in)); st.Code() != codes.NotFound {
		t.Errorf("code %v, want NotFound", st.Code())
	}
	if StatusFromErrno(nil).Err() != nil || ErrorFromStatus(nil) != nil {
		t.Error("nil does not stay nil")
	}
	plain := errors.New("not from gRPC")
	if ErrorFromStatus(plain) != plain {
		t.Error("a plain error was changed")
	}
}
