package service

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// probe is a service whose one method does what the test says.
func probe(f func(ctx context.Context) error) func(grpc.ServiceRegistrar) {
	desc := &grpc.ServiceDesc{ServiceName: "test.Probe", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Do",
		Handler: func(_ any, ctx context.Context, dec func(any) error, mw grpc.UnaryServerInterceptor) (any, error) {
			in := &emptypb.Empty{}
			if err := dec(in); err != nil {
				return nil, err
			}
			return mw(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/test.Probe/Do"}, func(ctx context.Context, _ any) (any, error) {
				return &emptypb.Empty{}, f(ctx)
			})
		},
	}}}
	return func(r grpc.ServiceRegistrar) { r.RegisterService(desc, nil) }
}

// serveFront runs a gRPC front with the given service on cfg's socket.
func serveFront(t *testing.T, cfg *config.Config, register func(grpc.ServiceRegistrar)) (*Front, *clienttest.Log) {
	t.Helper()
	n := newWorld(t, cfg, world{})
	l, err := net.Listen("unix", cfg.API.Socket)
	if err != nil {
		t.Fatal(err)
	}
	s := n.services.newServer(register, true)
	n.services.SetServing(true)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n.services.Stop(ctx)
		<-done
	})
	return n.services, n.logs
}

func call(t *testing.T, cc *grpc.ClientConn) error {
	return cc.Invoke(clienttest.Context(t), "/test.Probe/Do", &emptypb.Empty{}, &emptypb.Empty{})
}

func TestIdentityComesFromTheKernel(t *testing.T) {
	cfg := clienttest.Config(t)
	var got config.Identity
	serveFront(t, cfg, probe(func(ctx context.Context) error { got = identityFrom(ctx); return nil }))
	if err := call(t, dialSocket(t, cfg)); err != nil {
		t.Fatal(err)
	}
	want := config.Identity{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	if got != want {
		t.Errorf("identity %+v, want %+v", got, want)
	}
}

func TestNoIdentityNoCall(t *testing.T) {
	if _, err := withIdentity(t.Context()); !errors.Is(err, rdserr.ErrPerm) {
		t.Errorf("a call without transport: %v", err)
	}
	if id := identityFrom(t.Context()); !id.Remote || id.UID != config.NobodyID {
		t.Errorf("a handler without interceptor sees %+v", id)
	}
}

func TestErrnoReachesTheClient(t *testing.T) {
	cfg := clienttest.Config(t)
	serveFront(t, cfg, probe(func(context.Context) error {
		return rdserr.With(rdserr.ErrCongested, "port 7 of 10.0.0.2 is congested")
	}))
	err := rdsdv1.ErrorFromStatus(call(t, dialSocket(t, cfg)))
	if !errors.Is(err, rdserr.ErrCongested) || !strings.Contains(err.Error(), "port 7") {
		t.Errorf("got %v", err)
	}
}

func TestPanicIsContained(t *testing.T) {
	cfg := clienttest.Config(t)
	f, logs := serveFront(t, cfg, probe(func(context.Context) error { panic("secret detail") }))
	cc := dialSocket(t, cfg)
	for range 2 { // and the server goes on
		err := call(t, cc)
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want Internal without the panic's text", err)
		}
	}
	if f.deps.Guard.Count(guard.Call) != 2 {
		t.Errorf("%d panics counted, want 2", f.deps.Guard.Count(guard.Call))
	}
	if !strings.Contains(logs.String(), "secret detail") || !strings.Contains(logs.String(), "grpc_test.go") {
		t.Error("the log lacks the panic or its stack")
	}
}

func TestRateLimitPerUser(t *testing.T) {
	cfg := clienttest.Config(t)
	cfg.API.CallsPerSec, cfg.API.CallsBurst = 0.001, 3
	f, _ := serveFront(t, cfg, probe(func(context.Context) error { return nil }))
	cc := dialSocket(t, cfg)
	for range 3 {
		if err := call(t, cc); err != nil {
			t.Fatal(err)
		}
	}
	err := rdsdv1.ErrorFromStatus(call(t, cc))
	if !errors.Is(err, rdserr.ErrRateLimited) || !strings.Contains(err.Error(), "api.calls_per_second") {
		t.Errorf("fourth call: %v", err)
	}
	if f.deps.Count.CallsRateLimited.Load() != 1 {
		t.Errorf("counted %d refusals", f.deps.Count.CallsRateLimited.Load())
	}
	// Health checks do not count and are not limited.
	if _, err := healthpb.NewHealthClient(cc).Check(clienttest.Context(t), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health check of a limited user: %v", err)
	}
}

func TestClientLimits(t *testing.T) {
	cfg := clienttest.Config(t)
	cfg.Limits.MaxClients, cfg.Limits.MaxClientsPerUID = 2, 1
	f, logs := serveFront(t, cfg, probe(func(context.Context) error { return nil }))
	first := dialSocket(t, cfg)
	if err := call(t, first); err != nil {
		t.Fatal(err)
	}
	// Each of them is told why, and more than a few at once are not even that.
	for range 3 * maxRefusals {
		c := dialSocket(t, cfg)
		err := call(t, c)
		if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable {
			t.Errorf("second connection of the user: %v", err)
		}
		if f.deps.Users.Len() != 1 {
			t.Error("a refused connection counts")
		}
	}
	if f.deps.Count.ClientsRefused.Load() == 0 || !strings.Contains(logs.String(), "limits.max_clients_per_uid") {
		t.Errorf("refusal not counted or logged:\n%s", logs.String())
	}
	first.Close()
	for deadline := time.Now().Add(5 * time.Second); f.deps.Users.Len() != 0; {
		if time.Now().After(deadline) {
			t.Fatal("a closed connection still counts")
		}
		time.Sleep(time.Millisecond)
	}
	if err := call(t, dialSocket(t, cfg)); err != nil {
		t.Errorf("after the first had closed: %v", err)
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	cfg := clienttest.Config(t)
	serveFront(t, cfg, func(s grpc.ServiceRegistrar) {
		rdsdv1.RegisterDatagramsServer(s, &datagramsServer{})
		rdsdv1.RegisterAdminServer(s, &adminServer{})
	})
	st, err := reflectpb.NewServerReflectionClient(dialSocket(t, cfg)).ServerReflectionInfo(clienttest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	st.Send(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}})
	r, err := st.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range r.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	st.CloseSend()
	for _, want := range []string{"rdsd.v1.Datagrams", "rdsd.v1.Admin", "grpc.health.v1.Health"} {
		if !strings.Contains(strings.Join(names, " "), want) {
			t.Errorf("%v lacks %s", names, want)
		}
	}
}

func TestCallsAreLoggedWithTheirUser(t *testing.T) {
	cfg := clienttest.Config(t)
	_, logs := serveFront(t, cfg, probe(func(context.Context) error { return nil }))
	if err := call(t, dialSocket(t, cfg)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"finished call", "grpc.method=Do", "uid=", "grpc.code=OK"} {
		if !strings.Contains(logs.String(), want) {
			t.Errorf("log lacks %q:\n%s", want, logs.String())
		}
	}
}
