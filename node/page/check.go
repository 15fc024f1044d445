package page

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// maxTarget bounds path and query of a request: nothing here needs as much.
const maxTarget = 1024

// policy lets a browser load what comes from here, and nothing else: no script or style
// within a page, no frame around it, and nothing that makes markup of text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// secure sets what holds for every answer.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}

// crossOrigin refuses what a page of another origin sends to change something. Nothing
// here changes anything; it is asked all the same.
var crossOrigin = http.NewCrossOriginProtection()

// fits refuses requests that no page of ours, and nobody with curl, sends.
func (p *Page) fits(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "everything here is for reading: GET or HEAD")
	case len(r.URL.Path)+len(r.URL.RawQuery) > maxTarget:
		refuse(w, http.StatusRequestURITooLong, "the address is too long")
	case !p.knownHost(r.Host):
		// A name that leads here by somebody else's DNS makes that somebody's page one of
		// our origin (DNS rebinding). An address, or a name of this machine's, cannot.
		refuse(w, http.StatusMisdirectedRequest, notKnown)
	case crossOrigin.Check(r) != nil || !sameOrigin(r):
		refuse(w, http.StatusForbidden, "the request comes from a page of another origin")
	default:
		return true
	}
	return false
}

// OfThisNode serves h to those who ask for this node by an address or a name of its own:
// what it tells is not for the page of somebody else's origin whose name leads here. A
// browser cannot come by a Unix socket, where names mean nothing.
func (p *Page) OfThisNode(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		switch {
		case local != nil && local.Network() == "unix", p.knownHost(r.Host):
			h.ServeHTTP(w, r)
		default:
			secure(w.Header())
			refuse(w, http.StatusMisdirectedRequest, notKnown)
		}
	})
}

const notKnown = "this node is not known by the name in the request; use its address, its host name, localhost, or a name in http.names"

// hostName is what this machine calls itself now: a daemon may be there before the machine has got its
// name. It is nobody else's to give away. Tests have another one.
var hostName = func() string {
	name, _ := os.Hostname() // without one there is a name less
	return strings.ToLower(name)
}

// knownHost reports whether host, of a request, is an address, a name of loopback, the
// machine's own or one that is configured.
func (p *Page) knownHost(host string) bool {
	u := url.URL{Host: host}
	name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return name == "localhost" || name != "" && name == hostName() || strings.HasSuffix(name, ".localhost") || slices.Contains(p.Conf().HTTP.Names, name)
}

// sameOrigin reports whether a request is of a page of ours, of no page at all, or leads a
// browser here, which shows what comes in a page of its own.
func sameOrigin(r *http.Request) bool {
	if o := r.Header.Get("Origin"); o != "" {
		u, err := url.Parse(o)
		if err != nil || u.Host != r.Host {
			return false
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return !strings.HasPrefix(r.URL.Path, "/api/") && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// only refuses parameters that are not among the known, and such as stand there twice.
func only(w http.ResponseWriter, r *http.Request, known ...string) (url.Values, bool) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		refuse(w, http.StatusBadRequest, "the query cannot be read")
		return nil, false
	}
	for name, values := range q {
		switch {
		case !slices.Contains(known, name):
			refuse(w, http.StatusBadRequest, "there is no parameter of that name; docs/api.md lists what there is")
			return nil, false
		case len(values) > 1:
			refuse(w, http.StatusBadRequest, "a parameter stands there twice")
			return nil, false
		}
	}
	return q, true
}

// statuses are the codes of HTTP for those of gRPC; of others it is 500.
var statuses = map[codes.Code]int{
	codes.InvalidArgument:    http.StatusBadRequest,
	codes.PermissionDenied:   http.StatusForbidden,
	codes.NotFound:           http.StatusNotFound,
	codes.FailedPrecondition: http.StatusConflict,
	codes.AlreadyExists:      http.StatusConflict,
	codes.ResourceExhausted:  http.StatusServiceUnavailable,
	codes.Unavailable:        http.StatusServiceUnavailable,
	codes.Unimplemented:      http.StatusNotImplemented,
	codes.DeadlineExceeded:   http.StatusGatewayTimeout,
}

// fail says why there is no answer.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if s, ok := statuses[rdsdv1.StatusFromErrno(err).Code()]; ok {
		status = s
	}
	if errors.Is(err, rdserr.ErrRateLimited) {
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", "1")
	}
	failure(w, status, rdserr.Errno(err), err.Error())
}

// refuse says why a request is not answered.
func refuse(w http.ResponseWriter, status int, why string) {
	failure(w, status, 0, why)
}

func failure(w http.ResponseWriter, status int, errno syscall.Errno, why string) {
	var answer struct {
		Error struct {
			Status  int    `json:"status"`
			Errno   int    `json:"errno"`
			Message string `json:"message"`
		} `json:"error"`
	}
	answer.Error.Status, answer.Error.Errno, answer.Error.Message = status, int(errno), why
	b, _ := json.Marshal(&answer) // numbers and a string
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client has gone away
}
