package rdsdv1

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rdsd/rdsd/rdserr"
)

// How an errno crosses gRPC.
//
// errno.json is the one table; the Python SDK reads the same bytes. Several
// errnos share a status code (EAGAIN and ENOBUFS are both RESOURCE_EXHAUSTED),
// so the code alone cannot bring the errno back. The exact one travels as a
// google.rpc.ErrorInfo among the status details: reason is the symbol
// ("ENOBUFS"), domain is ErrnoDomain, metadata["errno"] the Linux number.
// A detail was preferred to a trailer because a handler that returns the
// status needs no further call, and proxies keep it with the status.

// ErrnoDomain is the domain of the ErrorInfo that carries an errno.
const ErrnoDomain = "rdsd"

//go:embed errno.json
var errnoJSON []byte

// errnoRow is one line of errno.json.
type errnoRow struct {
	Errno      syscall.Errno `json:"errno"`
	Symbol     string        `json:"symbol"`
	Name       string        `json:"name"`
	Code       codes.Code    `json:"grpc_code"`
	DefaultFor []codes.Code  `json:"default_for"` // codes that mean this errno when no detail says better
	Text       string        `json:"text"`
}

type errnoTable struct {
	rows    []errnoRow
	byErrno map[syscall.Errno]*errnoRow
	byCode  map[codes.Code]*errnoRow
}

// errnos parses the embedded table once. A bad table is a broken build, so it panics.
var errnos = sync.OnceValue(func() *errnoTable {
	t := &errnoTable{byErrno: map[syscall.Errno]*errnoRow{}, byCode: map[codes.Code]*errnoRow{}}
	if err := json.Unmarshal(errnoJSON, &t.rows); err != nil {
		panic(fmt.Sprintf("errno.json: %v", err))
	}
	for i := range t.rows {
		row := &t.rows[i]
		t.byErrno[row.Errno] = row
		for _, c := range row.DefaultFor {
			t.byCode[c] = row
		}
	}
	return t
})

// CodeFromErrno returns the status code of an errno, Unknown for one that is
// not in the table.
func CodeFromErrno(n syscall.Errno) codes.Code {
	if row, ok := errnos().byErrno[n]; ok {
		return row.Code
	}
	return codes.Unknown
}

// StatusFromErrno turns any error into a status that carries its errno. A nil
// error is OK. A status error stays as it is; a context's end is its errno
// (ECANCELED, ETIMEDOUT); an error without errno is EIO, as in rdserr.Errno.
func StatusFromErrno(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	var withStatus interface{ GRPCStatus() *status.Status }
	if errors.As(err, &withStatus) {
		return withStatus.GRPCStatus()
	}
	n := rdserr.Errno(err)
	if n == syscall.EIO {
		switch {
		case errors.Is(err, context.Canceled):
			n = syscall.ECANCELED
		case errors.Is(err, context.DeadlineExceeded):
			n = syscall.ETIMEDOUT
		}
	}
	st := status.New(CodeFromErrno(n), err.Error())
	detailed, derr := st.WithDetails(&errdetails.ErrorInfo{
		Reason:   symbol(n),
		Domain:   ErrnoDomain,
		Metadata: map[string]string{"errno": strconv.Itoa(int(n))},
	})
	if derr != nil { // only for code OK, which no row has
		return st
	}
	return detailed
}

// ErrorFromStatus is the way back: the rdserr sentinel of a status error, with
// the text the other side gave. Without a detail the code decides
// (default_for in errno.json). nil stays nil; what is no status error is
// returned unchanged.
func ErrorFromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	if st.Code() == codes.OK {
		return nil
	}
	n := errnoOf(st)
	switch sentinel := rdserr.FromErrno(n).(type) {
	case *rdserr.Error:
		return rdserr.With(sentinel, "%s", text(st, sentinel.Text))
	default:
		return &otherErrno{text(st, n.Error()), n}
	}
}

// otherErrno is an error of an errno that has no sentinel, with the text that the other side
// gave it.
type otherErrno struct {
	text  string
	errno syscall.Errno
}

func (e *otherErrno) Error() string { return e.text }
func (e *otherErrno) Unwrap() error { return e.errno }

// UnaryErrno is the server interceptor that gives each handler's error its status.
func UnaryErrno(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	resp, err := handle(ctx, req)
	return resp, StatusFromErrno(err).Err()
}

// StreamErrno is UnaryErrno for streams.
func StreamErrno(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return StatusFromErrno(handle(srv, stream)).Err()
}

func errnoOf(st *status.Status) syscall.Errno {
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != ErrnoDomain {
			continue
		}
		if n, err := strconv.Atoi(info.GetMetadata()["errno"]); err == nil && n > 0 {
			return syscall.Errno(n)
		}
	}
	if row, ok := errnos().byCode[st.Code()]; ok {
		return row.Errno
	}
	return syscall.EIO
}

func symbol(n syscall.Errno) string {
	if row, ok := errnos().byErrno[n]; ok {
		return row.Symbol
	}
	return "ERRNO_" + strconv.Itoa(int(n))
}

func text(st *status.Status, otherwise string) string {
	if st.Message() != "" {
		return st.Message()
	}
	return otherwise
}
