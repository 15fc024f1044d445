package service

import (
	"context"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/rdserr"
)

// A question of a few bytes can have an answer of megabytes, and whoever asks need not read it:
// gRPC takes an answer whole and keeps it until its client has given window for the last
// byte. So a user has so many answers made at a time, each of which is a tree of messages
// first, and is charged for those that are large as long as their bytes are in memory. When that
// is over gRPC does not always tell: a stream that is reset drops what it has queued. The
// collector knows.

const (
	// listsAtOnce is how many lists are made for a user at a time.
	listsAtOnce = 4
	// sendsAtOnce is how many messages of a user's streams are given to gRPC at a time, and
	// sendLease how long one may take that waits for its client to read.
	sendsAtOnce = 2
	sendLease   = 5 * time.Millisecond
	// answerFree is the length of an answer that the charge of its stream covers.
	answerFree = streamBytes
	// answerPatience is how long an answer waits for earlier ones to be collected, and
	// collectEvery how often they are collected for that.
	answerPatience = 200 * time.Millisecond
	collectEvery   = time.Second
	// collectAfter is how long answers are charged at most while nobody else collects: a
	// daemon with little to do may not for minutes.
	collectAfter = 10 * time.Second
)

// lists are the calls whose answers have as many parts as the node has of something, or are looked for
// among as many.
var lists = map[string]bool{
	rdsdv1.Admin_ListPeers_FullMethodName:            true,
	rdsdv1.Admin_ListSockets_FullMethodName:          true,
	rdsdv1.Admin_ListQueue_FullMethodName:            true,
	rdsdv1.Admin_GetCounters_FullMethodName:          true,
	rdsdv1.Admin_ListCongestion_FullMethodName:       true,
	rdsdv1.Admin_ListCongestionMaps_FullMethodName:   true,
	rdsdv1.Admin_GetCongestionHistory_FullMethodName: true,
	rdsdv1.Admin_ListErrors_FullMethodName:           true,
	rdsdv1.Admin_GetConfig_FullMethodName:            true,
	rdsdv1.VolumeService_Get_FullMethodName:          true,
	rdsdv1.VolumeService_List_FullMethodName:         true,
	rdsdv1.VolumeService_ListSessions_FullMethodName: true,
	rdsdv1.VolumeService_ListPaths_FullMethodName:    true,
	rdsdv1.VolumeService_Check_FullMethodName:        true,
}

// answers bounds the answers of a node's calls.
type answers struct {
	memory *quota.Node
	after  time.Duration // collectAfter
	lists  *access.Turns
	sends  *access.Turns

	mu        sync.Mutex
	collected time.Time   // guarded by mu
	charges   int         // answers that are charged; guarded by mu
	due       *time.Timer // collects while there are charges; guarded by mu, nil: there were none
}

func newAnswers(memory *quota.Node) *answers {
	return &answers{memory: memory, after: collectAfter,
		lists: access.NewTurns(listsAtOnce, 0), sends: access.NewTurns(sendsAtOnce, sendLease)}
}

// unary is the interceptor.
func (a *answers) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	uid := identityFrom(ctx).UID
	if lists[info.FullMethod] {
		turn := a.lists.Of(uid)
		defer turn.Leave()
		if !turn.Take(ctx.Done()) {
			return nil, rdserr.With(rdserr.ErrTimeout, "uid %d has %d lists made already, and more wait", uid, listsAtOnce)
		}
	}
	resp, err := handler(ctx, req)
	if m, ok := resp.(proto.Message); ok && err == nil {
		return a.charged(uid, m)
	}
	return resp, err
}

// stream is the interceptor of calls that stream. A message that a handler has sent is kept
// after its call is over, too, until the client has given window for it, and a description of this API
// (reflection) has some 50 KiB. And a client can have hundreds of streams that list what there is, message
// by message, all at once: they take turns.
func (a *answers) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	turn := a.sends.Of(identityFrom(ss.Context()).UID)
	defer turn.Leave()
	return handler(srv, &chargedStream{ss, a, turn})
}

type chargedStream struct {
	grpc.ServerStream
	answers *answers
	turn    *access.Turn
}

func (s *chargedStream) SendMsg(m any) error {
	if p, ok := m.(proto.Message); ok {
		var err error
		if m, err = s.answers.charged(identityFrom(s.Context()).UID, p); err != nil {
			return err
		}
	}
	if !s.turn.Take(s.Context().Done()) {
		return status.FromContextError(s.Context().Err()).Err()
	}
	defer s.turn.Give()
	return s.ServerStream.SendMsg(m)
}

// charged is an answer that its user is charged for, if it is large.
func (a *answers) charged(uid uint32, m proto.Message) (any, error) {
	n := proto.Size(m)
	if n <= answerFree {
		return m, nil
	}
	account := a.memory.Account(quota.User(uid))
	err := account.Take(quota.Calls, int64(n))
	for begun := time.Now(); err != nil && time.Since(begun) < answerPatience; err = account.Take(quota.Calls, int64(n)) {
		a.collect()
		time.Sleep(callPoll)
	}
	if err != nil {
		account.Close()
		return nil, err
	}
	// From here on the bytes have the charge, until they are written or, if they never are, gone.
	a.begin()
	end := sync.OnceFunc(func() {
		account.Give(quota.Calls, int64(n))
		account.Close()
		a.mu.Lock()
		a.charges--
		a.mu.Unlock()
	})
	b := make([]byte, 0, n)
	runtime.AddCleanup(&b[:1][0], func(end func()) { end() }, end)
	b, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	return client.Encoded{Bytes: b, Done: end}, err
}

// begin counts an answer that is charged, and has what is charged collected in time.
func (a *answers) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.charges++; a.due == nil {
		a.due = time.AfterFunc(a.after, a.overdue)
	} else if a.charges == 1 {
		a.due.Reset(a.after)
	}
}

// overdue collects what is charged still, and again later if something is charged then: its
// client does not read it.
func (a *answers) overdue() {
	a.mu.Lock()
	charged := a.charges > 0
	if charged {
		a.due.Reset(a.after)
	}
	a.mu.Unlock()
	if charged {
		a.collect()
	}
}

// collect has the collector find what was sent, or dropped, now and then.
func (a *answers) collect() {
	a.mu.Lock()
	now := time.Now()
	due := now.Sub(a.collected) >= collectEvery
	if due {
		a.collected = now
	}
	a.mu.Unlock()
	if due {
		runtime.GC()
	}
}
