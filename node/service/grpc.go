package service

import (
	"context"
	"log/slog"
	"math"
	"net"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/msgpool"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/datagram"
	webpage "github.com/rdsd/rdsd/node/page"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
)

// Setting grpc's default pool is possible in an init function only; it is the one
// thing nodes of a process share.
func init() { experimental.SetDefaultBufferPool(msgpool.Pool) }

const (
	// maxMessageBytes holds the largest batch a client may send (its window)
	// with an index for the smallest datagrams.
	maxMessageBytes = 4 << 20
	// maxStreamsPerClient bounds sockets and calls on one connection.
	maxStreamsPerClient = 4096
	// maxHeaderBytes bounds the fields of a call, with 32 bytes for each as HTTP/2 counts. A call has some ten fields, 600 bytes.
	maxHeaderBytes = 4 << 10
	// streamWindow and connWindow are what a client may send ahead of who reads it.
	streamWindow = 256 << 10
	connWindow   = 4 << 20
)

// serviceDeps is what the services are given.
type Deps struct {
	*base.Deps
	Read     func(*datagram.Snapshot) // what its datagrams are doing
	Host     *datagram.Host           // nil: there is a core without links, in tests
	Clients  *client.Front
	Users    *access.Clients // their connections
	Limiter  *access.Limiter
	Volumes  func() *volume.Host                           // nil while there are none
	RDMA     func() []RDMADevice                           // devices for volumes over RDMA; nil: there never are any
	State    func() string                                 // of the node: what it is about to do
	HTTPAddr func() net.Addr                               // where the page for monitoring is; nil: nowhere
	Errors   func() (list []LoggedError, forgotten uint64) // those of the log, the last one first
}

// Front is the services of a node over gRPC: a server for the Unix socket and, when
// configured, one for remote clients; and its metrics.
type Front struct {
	deps      Deps
	calls     *callTable
	metrics   *grpcprom.ServerMetrics
	health    *health.Server
	servers   []*grpc.Server
	registry  *prometheus.Registry
	full      volumesFull
	refusedAt datedRefusals // of memory
	swept     []base.Budget // of Sweep
	status    sharedStatus
	hour      *webpage.Keeper // the last hour of congestion; nil without a Host

	pings, watches, volumeWatches *standing
	answers                       *answers
	closers                       *access.Closers // of connections that are refused
}

// newServices makes the services of a node.
func New(d Deps) *Front {
	f := &Front{deps: d, metrics: grpcprom.NewServerMetrics(), health: health.NewServer(),
		pings: newStanding("pings", maxPings), watches: newStanding("watches of congestion", maxWatches),
		volumeWatches: newStanding("watches of volumes", maxWatches), answers: newAnswers(d.Memory), closers: access.NewClosers(d.Guard, closedAtOnce)}
	f.calls = &callTable{log: d.Log, count: d.Count, guard: d.Guard, conns: map[*callConn]struct{}{}, perSecond: func() float64 {
		perSecond, _ := d.Limiter.Limits()
		return float64(perSecond)
	}}
	if d.Host != nil {
		f.hour = webpage.NewKeeper(d.Host)
	}
	f.registry = newRegistry(newCollector(f.snapshot, d.Count, d.Guard), newQueueCollector(f.readFigures, d.Guard), newProblemCollector(f.readProblems, d.Guard), newVolumeCollector(f.readVolumes, d.Guard), newRDMACollector(d.RDMA), f.metrics)
	return f
}

// KeepHour keeps the last hour of congestion, until done is closed.
func (f *Front) KeepHour(done <-chan struct{}) {
	if f.hour != nil {
		f.hour.Run(done)
	}
}

// Registry is where the metrics of the node are.
func (f *Front) Registry() *prometheus.Registry { return f.registry }

// Sweep ends calls whose clients have been silent for too long in the middle of a message, and notes which memory
// was refused since the last one. It comes every second, and allocates nothing. One goroutine calls it.
func (f *Front) Sweep(now time.Time) {
	f.calls.sweep(now)
	f.swept = f.memoryBudgets(f.swept[:0], now)
}

// register adds the services to a server.
func (f *Front) register(s grpc.ServiceRegistrar) {
	rdsdv1.RegisterDatagramsServer(s, &datagramsServer{clients: f.deps.Clients})
	rdsdv1.RegisterAdminServer(s, &adminServer{front: f})
	rdsdv1.RegisterVolumeServiceServer(s, &volumeServer{front: f})
}

// NewServer makes a server that knows who calls: of clients on this machine, or of
// remote ones.
func (f *Front) NewServer(local bool) *grpc.Server { return f.newServer(f.register, local) }

func (f *Front) newServer(register func(grpc.ServiceRegistrar), local bool) *grpc.Server {
	logOpts := []logging.Option{
		logging.WithLogOnEvents(logging.StartCall, logging.FinishCall),
		logging.WithLevels(callLevel),
		logging.WithDisableLoggingFields(logging.SystemTag[0], logging.ComponentFieldKey, logging.MethodTypeFieldKey),
		logging.WithFieldsFromContext(func(ctx context.Context) logging.Fields {
			id, _ := transportIdentity(ctx)
			return logging.Fields{"uid", id.UID, "pid", id.PID}
		}),
	}
	logger := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		f.deps.Log.Log(ctx, slog.Level(level), msg, fields...)
	})
	onPanic := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		return rdserr.With(rdserr.ErrIO, "%v", f.deps.Guard.Caught(guard.Call, p))
	})
	s := grpc.NewServer(
		// Never; where no time is named it is two hours. gRPC compares times of day for it: once the clock
		// is set back by more than it waits, it would close each connection. A Unix socket tells by itself
		// who is gone, and so does TCP (node.listenRemote); a stopped reader on this machine keeps its socket.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: math.MaxInt64}),
		grpc.Creds(&peerCreds{clients: f.deps.Users, calls: f.calls, guard: f.deps.Guard, memory: f.deps.Memory, closers: f.closers, tolls: &f.deps.Tolls}),
		// What stands unread on a stream is bounded by its window, which does not
		// grow by itself. For a message larger than that gRPC gives more when it
		// begins to read it, so that it costs no large message a round trip.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ForceServerCodecV2(client.NewCodec(f.deps.Guard)),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxConcurrentStreams(maxStreamsPerClient),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(
			f.metrics.UnaryServerInterceptor(),
			logging.UnaryServerInterceptor(logger, logOpts...),
			rdsdv1.UnaryErrno,
			auth.UnaryServerInterceptor(withIdentity),
			callLimit{f.deps.Limiter, f.deps.Count}.unary(),
			recovery.UnaryServerInterceptor(onPanic),
			f.answers.unary,
			pointUnary,
		),
		grpc.ChainStreamInterceptor(
			keepStream,
			f.metrics.StreamServerInterceptor(),
			logging.StreamServerInterceptor(logger, logOpts...),
			rdsdv1.StreamErrno,
			auth.StreamServerInterceptor(withIdentity),
			callLimit{f.deps.Limiter, f.deps.Count}.stream(),
			recovery.StreamServerInterceptor(onPanic),
			f.answers.stream,
		),
	)
	register(s)
	healthpb.RegisterHealthServer(s, f.health)
	if local {
		reflection.Register(s)
	}
	f.metrics.InitializeMetrics(s)
	f.servers = append(f.servers, s)
	return s
}

// datagramsServer is the service Datagrams: one stream is one socket.
type datagramsServer struct {
	rdsdv1.UnimplementedDatagramsServer
	clients *client.Front
}

// Open serves one socket until its stream ends.
func (d *datagramsServer) Open(stream grpc.BidiStreamingServer[rdsdv1.ClientMessage, rdsdv1.ServerMessage]) error {
	return d.clients.ServeStream(stream, identityFrom(stream.Context()), bareStream(stream))
}

// pointUnary is where a test lets a call panic.
func pointUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	guard.Point("call")
	return handler(ctx, req)
}

// The interceptors wrap a stream and look at the clock and at counters for each
// message, which for a socket's stream is a tenth of the whole cost. So the
// first of them keeps the stream itself in the context, and Datagrams.Open
// uses that after Bind: its messages have counters of their own.
type streamKey struct{}

type keptStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *keptStream) Context() context.Context { return s.ctx }

func keepStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &keptStream{ss, context.WithValue(ss.Context(), streamKey{}, ss)})
}

// bareStream is the stream without interceptors, or the one given.
func bareStream(wrapped grpc.ServerStream) grpc.ServerStream {
	if ss, ok := wrapped.Context().Value(streamKey{}).(grpc.ServerStream); ok {
		return ss
	}
	return wrapped
}

// callLevel keeps ordinary calls out of the log at its default level.
func callLevel(c codes.Code) logging.Level {
	switch c {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return logging.LevelError
	case codes.Unauthenticated, codes.ResourceExhausted:
		return logging.LevelWarn
	case codes.PermissionDenied:
		// Who refuses logs it, with what was asked for: once is enough.
		return logging.LevelDebug
	}
	return logging.LevelDebug
}

// healthServices are the names a health check may ask for.
var healthServices = []string{"", rdsdv1.Datagrams_ServiceDesc.ServiceName, rdsdv1.Admin_ServiceDesc.ServiceName,
	rdsdv1.VolumeService_ServiceDesc.ServiceName}

// SetServing says to health checks whether the node serves.
func (f *Front) SetServing(on bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if on {
		st = healthpb.HealthCheckResponse_SERVING
	}
	for _, s := range healthServices {
		f.health.SetServingStatus(s, st)
	}
}

// Stop lets calls end until ctx does, then ends them.
func (f *Front) Stop(ctx context.Context) {
	f.health.Shutdown()
	done := make(chan struct{})
	go func() { // ends when every server has stopped, which Stop below forces
		defer close(done)
		defer f.deps.Guard.Recover(guard.Task, nil)
		for _, s := range f.servers {
			s.GracefulStop()
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		for _, s := range f.servers {
			s.Stop()
		}
		<-done
	}
}

// notHealth is true for calls that count against a user's rate: health checks
// and reflection come from monitoring and cost nothing.
func notHealth(_ context.Context, c interceptors.CallMeta) bool {
	return c.Service != healthpb.Health_ServiceDesc.ServiceName && c.Service != "grpc.reflection.v1.ServerReflection" &&
		c.Service != "grpc.reflection.v1alpha.ServerReflection"
}
