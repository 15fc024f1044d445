package rtrs

import (
	"testing"
	"time"
)

// kernelTimes are those of Linux (drivers/infiniband/ulp/rtrs/rtrs-pri.h, rtrs.c).
var kernelTimes = KernelTimes{HeartbeatEvery: 5 * time.Second, MissedLimit: 6, ConnectTimeout: 30 * time.Second}

// What is zero has its default, and what depends on another follows it.
func TestClientDefaults(t *testing.T) {
	for _, c := range []struct{ is, want ClientConfig }{
		{ClientConfig{Name: "a"}, ClientConfig{
			Name: "a", Conns: 2, HeartbeatEvery: 200 * ms, MissedLimit: 4, ConnTimeout: 800 * ms, ConnectTimeout: 5 * time.Second, Kernel: kernelTimes,
			ReconnectMin: 100 * ms, ReconnectMax: 5 * time.Second, IOTimeout: 30 * time.Second, LossTimeout: 30 * time.Second, UnfencedAfter: 40 * time.Second,
		}},
		{ClientConfig{Name: "a", MissedLimit: 10, ReconnectMin: time.Minute}, ClientConfig{
			Name: "a", Conns: 2, HeartbeatEvery: 200 * ms, MissedLimit: 10, ConnTimeout: 2 * time.Second, ConnectTimeout: 5 * time.Second, Kernel: kernelTimes,
			ReconnectMin: time.Minute, ReconnectMax: time.Minute, IOTimeout: 30 * time.Second, LossTimeout: 30 * time.Second, UnfencedAfter: 40 * time.Second,
		}},
	} {
		if got, err := c.is.withDefaults(); got != c.want || err != nil {
			t.Errorf("%+v, %v; want %+v", got, err, c.want)
		}
	}
}

// Values are good to the very edge of what is possible, and the next one is refused.
func TestClientConfigEdges(t *testing.T) {
	for _, c := range []struct {
		what string
		ok   bool
		is   ClientConfig
	}{
		{"the fewest connections", true, ClientConfig{Conns: 2}},
		{"too few", false, ClientConfig{Conns: 1}},
		{"the most connections", true, ClientConfig{Conns: 64}},
		{"too many", false, ClientConfig{Conns: 65}},
		{"the deepest queue", true, ClientConfig{QueueDepth: 65535}},
		{"too deep", false, ClientConfig{QueueDepth: 65536}},
		{"a timeout as long as the silence", true, ClientConfig{ConnTimeout: 800 * ms}},
		{"shorter", false, ClientConfig{ConnTimeout: 800*ms - 1}},
		{"equal pauses", true, ClientConfig{ReconnectMin: time.Second, ReconnectMax: time.Second}},
		{"a first pause below nothing", false, ClientConfig{ReconnectMin: -1}},
		{"reconnects counted", true, ClientConfig{MaxReconnects: 1}},
		{"no reconnects", true, ClientConfig{MaxReconnects: -1}},
		{"below nothing", false, ClientConfig{MaxReconnects: -2}},
		{"the most reconnects", true, ClientConfig{MaxReconnects: 9999}},
		{"more reconnects", false, ClientConfig{MaxReconnects: 10000}},
		{"the last way without a fence", true, ClientConfig{Unfenced: RetryNever}},
		{"no way without a fence", false, ClientConfig{Unfenced: RetryNever + 1}},
		{"a time that ended", false, ClientConfig{UnfencedAfter: -1}},
		{"the last policy", true, ClientConfig{Policy: Policy(len(policies) - 1)}},
		{"none", false, ClientConfig{Policy: Policy(len(policies))}},
		{"error on loss", true, ClientConfig{OnLoss: Error}},
		{"neither", false, ClientConfig{OnLoss: Error + 1}},
		{"short timeouts", true, ClientConfig{ConnectTimeout: 1, IOTimeout: 1, LossTimeout: 1}},
		{"time to connect below nothing", false, ClientConfig{ConnectTimeout: -1}},
		{"time for a request", false, ClientConfig{IOTimeout: -1}},
		{"time without a path", false, ClientConfig{LossTimeout: -1}},
		{"the fastest heart", true, ClientConfig{HeartbeatEvery: 10 * ms}},
		{"faster", false, ClientConfig{HeartbeatEvery: 10*ms - 1}},
		{"the slowest heart", true, ClientConfig{HeartbeatEvery: time.Minute}},
		{"slower", false, ClientConfig{HeartbeatEvery: time.Minute + 1}},
		{"the fewest missed", true, ClientConfig{MissedLimit: 2}},
		{"fewer", false, ClientConfig{MissedLimit: 1}},
		{"the most missed", true, ClientConfig{MissedLimit: 100}},
		{"more", false, ClientConfig{MissedLimit: 101}},
		{"the slowest heart for kernels", true, ClientConfig{Kernel: KernelTimes{HeartbeatEvery: time.Minute}}},
		{"slower for kernels", false, ClientConfig{Kernel: KernelTimes{HeartbeatEvery: time.Minute + 1}}},
		{"time to connect to a kernel below nothing", false, ClientConfig{Kernel: KernelTimes{ConnectTimeout: -1}}},
	} {
		c.is.Name = "a"
		if _, err := c.is.withDefaults(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestServerDefaults(t *testing.T) {
	want := ServerConfig{
		QueueDepth: 512, MaxIO: 256 << 10, MaxHdr: 4096, HeartbeatEvery: 200 * ms, MissedLimit: 4,
		ConnectTimeout: 5 * time.Second, Kernel: kernelTimes, TrimAfter: 10 * time.Second, MaxSessions: 256, MaxPaths: 8, MaxConns: 32 << 10,
	}
	if got, _, err := (ServerConfig{}).withDefaults(); got != want || err != nil {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestServerConfigEdges(t *testing.T) {
	for _, c := range []struct {
		what string
		ok   bool
		is   ServerConfig
	}{
		{"one chunk", true, ServerConfig{QueueDepth: 1}},
		{"below nothing", false, ServerConfig{QueueDepth: -1}},
		{"the most chunks", true, ServerConfig{QueueDepth: maxDepth, MaxIO: 4096}},
		{"more than one send can say", false, ServerConfig{QueueDepth: maxDepth + 1, MaxIO: 4096}},
		{"the least data", true, ServerConfig{MaxIO: 512}},
		{"less", false, ServerConfig{MaxIO: 511}},
		{"the most data", true, ServerConfig{QueueDepth: 2, MaxIO: 64 << 20}},
		{"more", false, ServerConfig{QueueDepth: 2, MaxIO: 64<<20 + 1}},
		{"the least header", true, ServerConfig{MaxHdr: 512}},
		{"a smaller one", false, ServerConfig{MaxHdr: 511}},
		{"the largest header", true, ServerConfig{MaxHdr: 64 << 10}},
		{"a larger one", false, ServerConfig{MaxHdr: 64<<10 + 1}},
		{"short timeouts", true, ServerConfig{ConnectTimeout: 1, TrimAfter: 1}},
		{"time to connect below nothing", false, ServerConfig{ConnectTimeout: -1}},
		{"time to trim", false, ServerConfig{TrimAfter: -1}},
		{"one of each", true, ServerConfig{MaxSessions: 1, MaxPaths: 1, MaxConns: 1}},
		{"sessions below nothing", false, ServerConfig{MaxSessions: -1}},
		{"paths below nothing", false, ServerConfig{MaxPaths: -1}},
		{"connections below nothing", false, ServerConfig{MaxConns: -1}},
		{"the most paths", true, ServerConfig{MaxPaths: 128}},
		{"more paths", false, ServerConfig{MaxPaths: 129}},
		{"the most connections", true, ServerConfig{MaxConns: 1 << 20}},
		{"more connections", false, ServerConfig{MaxConns: 1<<20 + 1}},
		{"a heart too fast", false, ServerConfig{HeartbeatEvery: 1}},
		{"a heart too fast for kernels", false, ServerConfig{Kernel: KernelTimes{HeartbeatEvery: 1}}},
	} {
		if _, _, err := c.is.withDefaults(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
