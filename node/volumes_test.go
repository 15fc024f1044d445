package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
)

// volumeNodes starts two nodes and returns clients of them: near maps, far exports.
func volumeNodes(t *testing.T, change func(*config.Config)) (near, far *config.Config, nearVol, farVol rdsdv1.VolumeServiceClient) {
	port := freePort(t)
	cfgs := startNodes(t, 2, func(c *config.Config) {
		c.Volumes.Port = port
		c.Volumes.Name = "n" + strings.ReplaceAll(c.RDS.Addresses[0].String(), ".", "-")
		if change != nil {
			change(c)
		}
	})
	return cfgs[0], cfgs[1], rdsdv1.NewVolumeServiceClient(dial(t, cfgs[0])), rdsdv1.NewVolumeServiceClient(dial(t, cfgs[1]))
}

// The whole way: export at one node, map at the other, write and read through
// the socket, see it in the lists, in the events and in /metrics, cut the path,
// resize, unmap.
func TestVolumeEndToEnd(t *testing.T) {
	near, far, nearVol, farVol := volumeNodes(t, nil)
	ctx := testContext(t)
	seen := watchVolumes(t, nearVol)
	farSeen := watchVolumes(t, farVol)

	file := filepath.Join(t.TempDir(), "disk")
	const size = 8 << 20
	e, err := farVol.Export(ctx, rdsdv1.VolumeExportRequest_builder{Name: "disk", Path: file, Create: true, SizeBytes: size}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if e.GetKind() != rdsdv1.VolumeKind_VOLUME_KIND_FILE || e.GetInfo().GetSizeBytes() != size || e.GetState() == rdsdv1.VolumeExportState_VOLUME_EXPORT_STATE_FAILED ||
		e.GetOrigin() != rdsdv1.VolumeOrigin_VOLUME_ORIGIN_CALL {
		t.Errorf("exported %v", e)
	}
	_, err = farVol.Export(ctx, rdsdv1.VolumeExportRequest_builder{Name: "disk", SizeBytes: 4096}.Build())
	wantErrno(t, "an export of the same name", err, syscall.EEXIST)

	node := far.RDS.Addresses[0].String()
	_, err = nearVol.Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: node, Name: "nothing"}.Build())
	wantErrno(t, "a mapping of nothing", err, syscall.ENOENT)
	m, err := nearVol.Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: node, Name: "disk"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if m.GetState() != rdsdv1.VolumeMappingState_VOLUME_MAPPING_STATE_OPEN || m.GetInfo().GetSizeBytes() != size ||
		m.GetAttach() != rdsdv1.VolumeAttach_VOLUME_ATTACH_SOCKET || m.GetPathsUp() != 1 {
		t.Errorf("mapped %v", m)
	}
	_, err = nearVol.Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: node, Name: "disk"}.Build())
	wantErrno(t, "the same again", err, syscall.EEXIST)

	// Both ends have the other as a peer, with this path and nothing else.
	for cfg, other := range map[*config.Config]*config.Config{near: far, far: near} {
		peers, err := rdsdv1.NewAdminClient(dial(t, cfg)).ListPeers(ctx, &rdsdv1.ListPeersRequest{})
		if l := peers.GetPeer(); err != nil || len(l) != 1 || !bytes.Equal(l[0].GetRemote(), other.RDS.Addresses[0].AsSlice()) ||
			len(l[0].GetPath()) != 0 || len(l[0].GetVolumePath()) != 1 || l[0].GetVolumePath()[0].GetSession() != m.GetSession() {
			t.Errorf("peers %v, %v", peers, err)
		}
	}

	dev, err := nbd.DialURI(ctx, m.GetUri())
	if err != nil {
		t.Fatal(err)
	}
	written := make([]byte, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range written {
		written[i] = byte(rng.Uint32())
	}
	if _, err := dev.WriteAt(written, 4096); err != nil {
		t.Fatal(err)
	}
	if err := dev.Flush(); err != nil {
		t.Fatal(err)
	}
	read := make([]byte, len(written))
	if _, err := dev.ReadAt(read, 4096); err != nil || !bytes.Equal(read, written) {
		t.Fatalf("read back: %v, equal %v", err, bytes.Equal(read, written))
	}
	onDisk, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(onDisk[4096:4096+len(written)], written) {
		t.Errorf("the file does not hold what was written: %v", err)
	}

	listed, err := nearVol.List(ctx, &rdsdv1.VolumeListRequest{})
	if err != nil || len(listed.GetMapping()) != 1 || len(listed.GetExport()) != 0 || listed.GetMapping()[0].GetUsers() != 1 {
		t.Fatalf("list: %v, %v", listed, err)
	}
	if w := opOf(listed.GetMapping()[0].GetOperation(), "write"); w.GetBytes() != uint64(len(written)) || w.GetCompleted() == 0 || w.GetErrors() != 0 || w.GetP99Ns() == 0 {
		t.Errorf("writes counted: %v", w)
	}
	get := &rdsdv1.VolumeGetRequest{}
	get.SetExport("disk")
	got, err := farVol.Get(ctx, get)
	if err != nil || len(got.GetExport().GetUser()) != 1 || got.GetExport().GetUser()[0].GetSession() != m.GetSession() {
		t.Errorf("the export: %v, %v", got, err)
	}
	info, err := nearVol.Info(ctx, rdsdv1.VolumeInfoRequest_builder{Node: node, Name: "disk"}.Build())
	if err != nil || info.GetInfo().GetSizeBytes() != size {
		t.Errorf("info: %v, %v", info, err)
	}

	// A path that an administrator disconnects is lost for the session until it
	// is connected again; what is written meanwhile waits.
	paths := pathsOf(t, nearVol)
	if len(paths) != 1 || paths[0].GetState() != rdsdv1.VolumePathState_VOLUME_PATH_STATE_CONNECTED || paths[0].GetWriteBytes() < uint64(len(written)) {
		t.Fatalf("paths: %v", paths)
	}
	spec := rdsdv1.VolumePathRequest_builder{Session: m.GetSession(), Path: rdsdv1.VolumePathSpec_builder{Destination: paths[0].GetDestination()}.Build()}.Build()
	if _, err := nearVol.DisconnectPath(ctx, spec); err != nil {
		t.Fatal(err)
	}
	seen.until("closed mapping", func(e *rdsdv1.VolumeEvent) bool {
		return e.GetKind() == rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_MAPPING && e.GetState() == "closed" && e.GetMapping() == m.GetId()
	})
	later := make(chan error, 1)
	go func() { _, err := dev.WriteAt(written[:4096], 0); later <- err }()
	if _, err := nearVol.ReconnectPath(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if err := <-later; err != nil {
		t.Errorf("a write without a path: %v", err)
	}
	seen.until("open mapping", func(e *rdsdv1.VolumeEvent) bool {
		return e.GetKind() == rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_MAPPING && e.GetState() == "open"
	})
	farSeen.until("session up", func(e *rdsdv1.VolumeEvent) bool {
		return e.GetKind() == rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_SESSION && e.GetRole() == rdsdv1.VolumeRole_VOLUME_ROLE_SERVER
	})

	resize := &rdsdv1.VolumeResizeRequest{}
	resize.SetExport("disk")
	resize.SetSizeBytes(2 * size)
	if r, err := farVol.Resize(ctx, resize); err != nil || r.GetSizeBytes() != 2*size {
		t.Errorf("resize: %v, %v", r, err)
	}
	resize.SetSizeBytes(size)
	resize.SetGrowOnly(true)
	_, err = farVol.Resize(ctx, resize)
	wantErrno(t, "grow to less", err, syscall.EINVAL)
	resize = &rdsdv1.VolumeResizeRequest{}
	resize.SetMapping(m.GetId())
	if r, err := nearVol.Resize(ctx, resize); err != nil || r.GetSizeBytes() != 2*size {
		t.Errorf("the mapping's size: %v, %v", r, err)
	}

	_, err = farVol.Unexport(ctx, rdsdv1.VolumeUnexportRequest_builder{Name: "disk"}.Build())
	wantErrno(t, "unexport of what is in use", err, syscall.EBUSY)
	_, err = nearVol.Unmap(ctx, rdsdv1.VolumeUnmapRequest_builder{Mapping: m.GetId()}.Build())
	wantErrno(t, "unmap of what is in use", err, syscall.EBUSY)
	dev.Close()
	if _, err := nearVol.Unmap(ctx, rdsdv1.VolumeUnmapRequest_builder{Mapping: m.GetId(), Force: true}.Build()); err != nil {
		t.Errorf("unmap: %v", err)
	}
	if _, err := farVol.Unexport(ctx, rdsdv1.VolumeUnexportRequest_builder{Name: "disk", Force: true}.Build()); err != nil {
		t.Errorf("unexport: %v", err)
	}
	get.SetExport("disk")
	_, err = farVol.Get(ctx, get)
	wantErrno(t, "an export that is gone", err, syscall.ENOENT)
}

// What happened shows in /metrics of both nodes.
func TestVolumeMetricsOfRealNodes(t *testing.T) {
	port := freePort(t)
	var nodes []*Node
	var vols []rdsdv1.VolumeServiceClient
	for range 2 {
		cfg := testConfig(t)
		cfg.RDS.Addresses[0] = loopbackAddr()
		cfg.Volumes.Port = port
		cfg.Volumes.Exports = []config.VolumeExport{{Name: "mem", Kind: "memory", Size: 1 << 20}}
		n, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		startNode(t, n)
		nodes = append(nodes, n)
		vols = append(vols, rdsdv1.NewVolumeServiceClient(dial(t, cfg)))
	}
	ctx := testContext(t)
	m, err := vols[0].Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: nodes[1].deps.Config.RDS.Addresses[0].String(), Name: "mem"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	dev, err := nbd.DialURI(ctx, m.GetUri())
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for i := range 10 {
		if _, err := dev.WriteAt(make([]byte, 4096), int64(i)*4096); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{
		fmt.Sprintf(`rdsd_mapping_bytes_total{mapping=%q,node=%q,op="write",volume="mem"} 40960`, m.GetId(), m.GetNode()),
		`rdsd_export_bytes_total{export="mem",op="write"} 40960`,
	} {
		text := scrape(t, nodes[i])
		for _, want := range []string{want, "rdsd_volume_path_up{"} {
			if !strings.Contains(text, want) {
				t.Errorf("/metrics of node %d lacks %s:\n%s", i, want, grep(text, "_volume_path", "_bytes_total{"))
			}
		}
	}
	_, err = vols[1].Export(ctx, rdsdv1.VolumeExportRequest_builder{Name: "mem", SizeBytes: 4096}.Build())
	wantErrno(t, "the name of a configured export", err, syscall.EEXIST)
}

// Who is no administrator changes nothing, and asks no other node anything.
func TestVolumesAreForAdministrators(t *testing.T) {
	cfg := testConfig(t)
	cfg.API.RemoteListen = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cfg.API.Insecure = true
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	startNode(t, n)
	cc, err := grpc.NewClient(cfg.API.RemoteListen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	v := rdsdv1.NewVolumeServiceClient(cc)
	ctx := testContext(t)
	path := &rdsdv1.VolumePathRequest{}
	for what, call := range map[string]func() error{
		"Export":     func() error { _, err := v.Export(ctx, &rdsdv1.VolumeExportRequest{}); return err },
		"Unexport":   func() error { _, err := v.Unexport(ctx, &rdsdv1.VolumeUnexportRequest{}); return err },
		"ForceClose": func() error { _, err := v.ForceClose(ctx, &rdsdv1.VolumeForceCloseRequest{}); return err },
		"Map":        func() error { _, err := v.Map(ctx, &rdsdv1.VolumeMapRequest{}); return err },
		"Unmap":      func() error { _, err := v.Unmap(ctx, &rdsdv1.VolumeUnmapRequest{}); return err },
		"Remap":      func() error { _, err := v.Remap(ctx, &rdsdv1.VolumeRemapRequest{}); return err },
		"Info":       func() error { _, err := v.Info(ctx, &rdsdv1.VolumeInfoRequest{}); return err },
		"Resize":     func() error { _, err := v.Resize(ctx, &rdsdv1.VolumeResizeRequest{}); return err },
		"AddPath":    func() error { _, err := v.AddPath(ctx, path); return err },
		"RemovePath": func() error { _, err := v.RemovePath(ctx, path); return err },
		"Disconnect": func() error { _, err := v.DisconnectPath(ctx, path); return err },
		"Reconnect":  func() error { _, err := v.ReconnectPath(ctx, path); return err },
		"SetPolicy":  func() error { _, err := v.SetPolicy(ctx, &rdsdv1.VolumeSetPolicyRequest{}); return err },
		"ResetStats": func() error { _, err := v.ResetStats(ctx, &rdsdv1.VolumeResetStatsRequest{}); return err },
	} {
		wantErrno(t, what, call(), syscall.EACCES)
	}
	for what, call := range map[string]func() error{
		"List":         func() error { _, err := v.List(ctx, &rdsdv1.VolumeListRequest{}); return err },
		"ListSessions": func() error { _, err := v.ListSessions(ctx, &rdsdv1.VolumeListSessionsRequest{}); return err },
		"ListPaths":    func() error { _, err := v.ListPaths(ctx, &rdsdv1.VolumeListPathsRequest{}); return err },
		"Check":        func() error { _, err := v.Check(ctx, &rdsdv1.VolumeCheckRequest{}); return err },
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if denied := n.deps.Count.AdminDenied.Load(); denied != 14 {
		t.Errorf("%d refusals counted", denied)
	}
}

// The rules for peers hold for volumes too, and so does volumes.allow.
func TestVolumePeersAreChecked(t *testing.T) {
	for name, deny := range map[string]func(*config.Config){
		"peers":         func(c *config.Config) { c.Peers = []config.PeerRule{{Address: prefixOf("127.0.0.0/8"), Deny: true}} },
		"volumes.allow": func(c *config.Config) { c.Volumes.Allow = []config.Prefix{prefixOf("10.0.0.0/8")} },
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			_, far, nearVol, farVol := volumeNodes(t, func(c *config.Config) {
				c.Volumes.Exports = []config.VolumeExport{{Name: "mem", Size: 1 << 20}}
				if !first {
					deny(c)
				}
				first = false
			})
			_, err := nearVol.Map(testContext(t), rdsdv1.VolumeMapRequest_builder{Node: far.RDS.Addresses[0].String(), Name: "mem"}.Build())
			wantErrno(t, "a mapping by a peer that is not allowed", err, syscall.EACCES)
			r, err := farVol.ListSessions(testContext(t), &rdsdv1.VolumeListSessionsRequest{})
			if err != nil || len(r.GetSession()) != 0 {
				t.Errorf("sessions %v, %v", r, err)
			}
		})
	}
}

func prefixOf(s string) (p config.Prefix) {
	if err := p.UnmarshalText([]byte(s)); err != nil {
		panic(err)
	}
	return p
}

// A limit that is reached says so, and is shown with what is used of it.
func TestVolumeLimits(t *testing.T) {
	cfgs := startNodes(t, 1, func(c *config.Config) { c.Volumes.MaxExports = 1; c.Volumes.Port = freePort(t) })
	cc := dial(t, cfgs[0])
	v, ctx := rdsdv1.NewVolumeServiceClient(cc), testContext(t)
	for i, want := range []syscall.Errno{0, syscall.EMFILE} {
		_, err := v.Export(ctx, rdsdv1.VolumeExportRequest_builder{Name: fmt.Sprint(i), SizeBytes: 4096}.Build())
		if rdserr.Errno(rdsdv1.ErrorFromStatus(err)) != want {
			t.Errorf("export %d: %v, want %v", i, err, want)
		}
	}
	st, err := rdsdv1.NewAdminClient(cc).GetStatus(ctx, &rdsdv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	shown := false
	for _, b := range st.GetBudget() {
		if b.GetName() == "exports" {
			shown = b.GetUsed() == 1 && b.GetLimit() == 1 && b.GetRefused() == 1
		}
	}
	if !shown {
		t.Errorf("budgets %v", st.GetBudget())
	}
}

// Where things are kept: beside the socket, or where systemd says; the directory
// of sockets can be entered by whom the sockets are for.
func TestVolumeDirectories(t *testing.T) {
	c := testConfig(t)
	beside := c.API.Socket + ".volumes"
	if v := c.VolumeConfig(); v.StateDir != beside || v.SocketDir != beside {
		t.Errorf("state in %s, sockets in %s", v.StateDir, v.SocketDir)
	}
	l, err := config.Load(config.LoadOptions{Env: []string{"STATE_DIRECTORY=/var/lib/rdsd:/elsewhere", "RDSD_SOCKET=@rdsd"}})
	if err != nil {
		t.Fatal(err)
	}
	if v := l.VolumeConfig(); v.StateDir != "/var/lib/rdsd/volumes" || v.SocketDir != "" {
		t.Errorf("state in %q, sockets in %q", v.StateDir, v.SocketDir)
	}
	c.Volumes.StateDir = "none"
	if v := c.VolumeConfig(); v.StateDir != "" || v.SocketDir != beside {
		t.Errorf("state in %q, sockets in %q", v.StateDir, v.SocketDir)
	}
	for _, tc := range []struct{ socket, dir os.FileMode }{{0o600, 0o700}, {0o660, 0o711}} {
		dir := filepath.Join(t.TempDir(), "a", "b")
		for range 2 { // the second time it is there
			if err := makeSocketDir(dir, tc.socket); err != nil {
				t.Fatal(err)
			}
		}
		st, err := os.Stat(dir)
		if err != nil || st.Mode().Perm() != tc.dir {
			t.Errorf("sockets of mode %v in a directory of mode %v, %v", tc.socket, st.Mode(), err)
		}
	}
}

// TestSocketDirOfAStranger: another user may have made the directory beside the daemon's socket before it. Sockets of
// mappings do not appear there, unless the configuration says so.
func TestSocketDirOfAStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to give a directory to another user takes root")
	}
	c := testConfig(t)
	c.Volumes.StateDir = "none"
	dir := c.VolumeConfig().SocketDir
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	n, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "volumes.socket_dir") || !strings.Contains(err.Error(), "uid 4242") {
		t.Errorf("started: %v", err)
	}
	c.Volumes.SocketDir = dir
	if n, err = New(c, nil); err != nil {
		t.Fatal(err)
	}
	startNode(t, n)
}

// Wrong requests are answered with what would be right.
func TestVolumeRequestsAreChecked(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	v := rdsdv1.NewVolumeServiceClient(dial(t, cfgs[0]))
	ctx := testContext(t)
	for what, call := range map[string]func() error{
		"kind is 9": func() error {
			_, err := v.Export(ctx, rdsdv1.VolumeExportRequest_builder{Name: "x", Kind: 9}.Build())
			return err
		},
		"allow_address": func() error {
			_, err := v.Export(ctx, rdsdv1.VolumeExportRequest_builder{Name: "x", AllowAddress: []string{"10.0.0.1/8"}}.Build())
			return err
		},
		"attach is": func() error {
			_, err := v.Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: "n", Name: "x", Attach: -1}.Build())
			return err
		},
		"queue_depth": func() error {
			_, err := v.Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: "n", Name: "x", QueueDepth: 1 << 20}.Build())
			return err
		},
		"what to get":    func() error { _, err := v.Get(ctx, &rdsdv1.VolumeGetRequest{}); return err },
		"what to resize": func() error { _, err := v.Resize(ctx, &rdsdv1.VolumeResizeRequest{}); return err },
		"policy is missing": func() error {
			_, err := v.SetPolicy(ctx, rdsdv1.VolumeSetPolicyRequest_builder{Session: "s"}.Build())
			return err
		},
	} {
		err := rdsdv1.ErrorFromStatus(call())
		if !errors.Is(err, rdserr.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := v.ListPaths(ctx, rdsdv1.VolumeListPathsRequest_builder{Session: "s"}.Build())
	wantErrno(t, "paths of no session", err, syscall.ENOENT)
}

func wantErrno(t *testing.T, what string, err error, n syscall.Errno) {
	t.Helper()
	if err = rdsdv1.ErrorFromStatus(err); !errors.Is(err, n) {
		t.Errorf("%s: %v, want %v", what, err, n)
	}
}

func opOf(list []*rdsdv1.VolumeOpCounters, op string) *rdsdv1.VolumeOpCounters {
	for _, o := range list {
		if o.GetOperation() == op {
			return o
		}
	}
	return nil
}

func pathsOf(t *testing.T, v rdsdv1.VolumeServiceClient) []*rdsdv1.VolumePath {
	t.Helper()
	r, err := v.ListPaths(testContext(t), &rdsdv1.VolumeListPathsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetPath()
}

// volumeWatch reads the events of a node.
type volumeWatch struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[rdsdv1.VolumeEvent]
	last   uint64
}

func watchVolumes(t *testing.T, v rdsdv1.VolumeServiceClient) *volumeWatch {
	t.Helper()
	st, err := v.Watch(testContext(t), &rdsdv1.VolumeWatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Header(); err != nil { // it watches
		t.Fatal(err)
	}
	return &volumeWatch{t: t, stream: st}
}

// TestVolumeEventsOfAnotherStart: the number of an event of an earlier start of the daemon, which this
// one has given again, brings a gap; one of this start does not.
func TestVolumeEventsOfAnotherStart(t *testing.T) {
	_, _, v, _ := volumeNodes(t, nil)
	for _, name := range []string{"a", "b"} {
		if _, err := v.Export(testContext(t), rdsdv1.VolumeExportRequest_builder{Name: name, SizeBytes: 4096}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	first := func(after, instance uint64) *rdsdv1.VolumeEvent {
		t.Helper()
		st, err := v.Watch(testContext(t), rdsdv1.VolumeWatchRequest_builder{After: after, Kept: after == 0, Instance: instance}.Build())
		if err != nil {
			t.Fatal(err)
		}
		e, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	self := first(0, 0).GetInstance()
	for of, number := range map[uint64]uint64{0: 2, self: 2, self + 1: 0} {
		gap := rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_GAP
		if e := first(1, of); e.GetNumber() != number || e.GetInstance() != self || (e.GetKind() == gap) != (number == 0) {
			t.Errorf("after event 1 of instance %d: %v", of, e)
		}
	}
	if self == 0 {
		t.Error("no instance is told")
	}
}

// until reads on to an event that fits; the numbers have no hole.
func (w *volumeWatch) until(what string, fits func(*rdsdv1.VolumeEvent) bool) {
	w.t.Helper()
	for {
		e, err := w.stream.Recv()
		if err != nil {
			w.t.Fatalf("waiting for %s: %v", what, err)
		}
		w.t.Logf("event %d: %v %s", e.GetNumber(), e.GetKind(), e.GetText())
		if w.last != 0 && e.GetNumber() != w.last+1 {
			w.t.Errorf("event %d follows %d", e.GetNumber(), w.last)
		}
		w.last = e.GetNumber()
		if fits(e) {
			return
		}
	}
}

func scrape(t *testing.T, n *Node) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+n.HTTPAddr().String()+"/metrics", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func grep(text string, parts ...string) string {
	var out []string
	for line := range strings.Lines(text) {
		for _, p := range parts {
			if strings.Contains(line, p) {
				out = append(out, line)
				break
			}
		}
	}
	return strings.Join(out, "")
}

// TestPeersMakeRoomForVolumes: volumes are given who makes room for the connection of a peer that
// nobody knew: a peer of datagrams that rests.
func TestPeersMakeRoomForVolumes(t *testing.T) {
	cfg := testConfig(t)
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	var evict func() bool
	n.tune = func(d *volume.Deps) { evict = d.Evict }
	startNode(t, n)
	if evict() {
		t.Error("one made room where there is nobody")
	}
	e, now := n.hosts.Locals()[0].Lock()
	_, err = e.Accept(now, netip.MustParseAddrPort("127.0.99.98:16385"))
	n.hosts.Locals()[0].Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if first, second := evict(), evict(); !first || second {
		t.Errorf("of one peer that rests: room %v, and then %v", first, second)
	}
}
