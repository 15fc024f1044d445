package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/rdsd/rdsd/node/volume"
)

// Volumes is what the node exports and how it maps volumes of others.
// node/volume has the ranges; here are the names.
type Volumes struct {
	Listen           string         `toml:"listen" usage:"when peers can reach the exports: auto (while there is an export or a root), always, never" want:"\"auto\", \"always\" or \"never\""`
	Port             uint16         `toml:"port" flag:"volume-port" usage:"TCP port of volumes, the same on all nodes" want:"a TCP port, 1 to 65535"`
	RDMA             string         `toml:"rdma" usage:"whether volumes go over RDMA too, beside TCP: off, or soft (RoCEv2 by UDP sockets, port 4791 of each address)" want:"\"off\" or \"soft\""`
	RDMAPort         uint16         `toml:"rdma_port" usage:"RDMA port of volumes: that of peers that name none, where the Linux modules' servers listen" want:"a port, 1 to 65535"`
	RDMAGSO          string         `toml:"rdma_gso" usage:"whether the kernel may cut bursts of packets of volumes.rdma: auto (while they arrive), or off (each packet by itself)" want:"\"auto\" or \"off\""`
	Name             string         `toml:"name" usage:"this node's part of the names of its sessions; empty: the host's name" want:"a name without \"/\" and \".\", or \"\""`
	StateDir         string         `toml:"state_dir" flag:"volume-state-dir" usage:"directory of what is persistent; empty: systemd's StateDirectory, else the socket's path with .volumes added; none: nothing is" want:"an absolute path such as \"/var/lib/rdsd/volumes\", \"none\" or \"\""`
	SocketDir        string         `toml:"socket_dir" usage:"directory for the sockets of mappings that name none; empty: the socket's path with .volumes added" want:"an absolute path, or \"\""`
	SocketMode       FileMode       `toml:"socket_mode" usage:"mode of those sockets" want:"octal permissions such as \"0600\""`
	Attach           string         `toml:"attach" usage:"what a mapping that does not say is: socket (an NBD export on a Unix socket) or nbd (a kernel device)" want:"\"socket\" or \"nbd\""`
	Allow            []Prefix       `toml:"allow" usage:"of the peers that [[peers]] allows, those that may connect for volumes; empty: all" want:"a list of addresses and subnets such as [\"10.0.0.0/24\"]"`
	QueueDepth       int            `toml:"queue_depth" usage:"requests in flight a session to this node has" want:"1 to 4095, less with large requests"`
	MaxIO            Bytes          `toml:"max_io_bytes" usage:"largest request of a session to this node" want:"a multiple of 4KiB, 4KiB to 32MiB"`
	AlwaysInvalidate bool           `toml:"always_invalidate" usage:"end the peer's access to a buffer before its content is used" want:"true or false"`
	Connections      int            `toml:"connections" usage:"connections for requests that each path of a mapping has" want:"1 to 16"`
	Heartbeat        Duration       `toml:"heartbeat_interval" usage:"silence after which a path is sent a heartbeat" want:"a duration such as \"200ms\", 10ms to 1m"`
	HeartbeatMissed  int            `toml:"heartbeat_missed" usage:"so many intervals of silence end a path" want:"2 to 100"`
	ReconnectMin     Duration       `toml:"reconnect_min" usage:"first reconnect delay of a path (full jitter)" want:"a duration such as \"100ms\", at least 1ms and at most volumes.reconnect_max"`
	ReconnectMax     Duration       `toml:"reconnect_max" usage:"largest reconnect delay of a path (full jitter)" want:"a duration such as \"5s\", at most 10m"`
	Policy           string         `toml:"policy" usage:"how requests are spread over paths: {policies}" want:"{a policy}"`
	IOTimeout        Duration       `toml:"io_timeout" usage:"a request that takes longer is told of, and gives a path up that may not live" want:"a duration such as \"30s\", 100ms to 24h"`
	OnLoss           string         `toml:"on_loss" usage:"what requests do without a path: wait (until there is one) or error (after loss_timeout)" want:"\"wait\" or \"error\""`
	LossTimeout      Duration       `toml:"loss_timeout" usage:"with on_loss error, how long requests wait for a path" want:"a duration such as \"30s\", 1ms to 24h"`
	Unfenced         string         `toml:"unfenced" usage:"what becomes of requests in flight on a lost path to a kernel's server, which cannot be asked to end them: after (to another path after unfenced_after), now (to another path at once: an old write may go over a newer one) or wait (for the same path)" want:"\"after\", \"now\" or \"wait\""`
	UnfencedAfter    Duration       `toml:"unfenced_after" usage:"with unfenced after, how long; a kernel ends a silent path after 35s at the latest" want:"a duration such as \"40s\", 1s to 24h"`
	MaxReconnects    int            `toml:"max_reconnect_attempts" usage:"attempts in a row to connect a lost path, after which it is left disconnected; -1: without end" want:"-1, or 1 to 9999"`
	NBDTimeout       Duration       `toml:"nbd_timeout" usage:"after this the kernel sends a request of its device again, also one that a daemon had when it died" want:"a duration such as \"30s\", 1s to 24h"`
	DeadTimeout      Duration       `toml:"nbd_dead_timeout" usage:"how long a kernel device waits for a daemon that is gone" want:"a duration such as \"1m\", 1s to 24h"`
	MaxExports       int            `toml:"max_exports" usage:"exports at once, those found below roots included" want:"1 to 1048576"`
	MaxMappings      int            `toml:"max_mappings" usage:"mappings at once" want:"1 to 65536"`
	MaxSessions      int            `toml:"max_sessions" usage:"sessions to this node at once, half of them from one address at most" want:"1 to 65536"`
	MaxConnections   int            `toml:"max_connections" usage:"connections of all sessions to this node at once, half of them from one address at most; a kernel makes one for each of its processors, and one, for each path" want:"2 to 1048576"`
	Exports          []VolumeExport `toml:"exports"`
	Roots            []VolumeRoot   `toml:"roots"`
}

// VolumeExport is one of [[volumes.exports]].
type VolumeExport struct {
	Name         string   `toml:"name" usage:"what other nodes call it" want:"a name such as \"disk\" or \"a/b\", without \"..\", at most 254 bytes"`
	Kind         string   `toml:"kind,omitempty" usage:"what holds the bytes; empty: what is at the path" want:"\"file\", \"block\", \"memory\" or \"\""`
	Path         string   `toml:"path,omitempty" usage:"the file or block device" want:"an absolute path; none for memory"`
	Size         Bytes    `toml:"size,omitempty" usage:"of memory, or of a file that create makes" want:"a size such as \"10GiB\""`
	Create       bool     `toml:"create,omitempty" usage:"make the file if there is none" want:"true or false"`
	ReadOnly     bool     `toml:"read_only,omitempty" usage:"nobody may write" want:"true or false"`
	Shared       bool     `toml:"shared,omitempty" usage:"several sessions may write at a time" want:"true or false"`
	LogicalBlock uint32   `toml:"logical_block_bytes,omitempty" usage:"logical block of a file or memory" want:"512 or 4096"`
	Allow        []Prefix `toml:"allow,omitempty" usage:"who may open it; empty: all that may connect" want:"a list of addresses and subnets such as [\"10.0.0.0/24\"]"`
	Sessions     []string `toml:"sessions,omitempty" usage:"names of sessions that may, with * and ?; empty: all" want:"a list of patterns such as [\"web-*\"]"`
}

// VolumeRoot is one of [[volumes.roots]].
type VolumeRoot struct {
	Path     string   `toml:"path" usage:"directory below which clients find files and block devices by name; {session} in it is the session's name" want:"an absolute path such as \"/srv/volumes/{session}\""`
	ReadOnly bool     `toml:"read_only,omitempty" usage:"nobody may write" want:"true or false"`
	Shared   bool     `toml:"shared,omitempty" usage:"several sessions may write one volume at a time" want:"true or false"`
	Allow    []Prefix `toml:"allow,omitempty" usage:"who may open; empty: all that may connect" want:"a list of addresses and subnets such as [\"10.0.0.0/24\"]"`
	Sessions []string `toml:"sessions,omitempty" usage:"names of sessions that may, with * and ?; empty: all" want:"a list of patterns such as [\"web-*\"]"`
}

// What volumes.rdma can be.
const (
	RDMAOff  = "off"
	RDMASoft = "soft"
)

// What volumes.rdma_gso can be.
const (
	GSOAuto = "auto"
	GSOOff  = "off"
)

// RDMABuffer is how many bytes of packets the socket of a device asks the kernel to hold, each way.
const RDMABuffer = 8 << 20

// DefaultRDMAPort is the RDMA port on which a kernel's RTRS server listens.
const DefaultRDMAPort = 1234

// noDir says that there is no directory.
const noDir = "none"

// volumeDir is where volumes keep things unless told otherwise, "" with an
// abstract socket.
func (c *Config) volumeDir() string {
	if strings.HasPrefix(c.API.Socket, "@") {
		return ""
	}
	return c.API.Socket + ".volumes"
}

// VolumeConfig is what node/volume is told.
func (c *Config) VolumeConfig() volume.Config {
	v := &c.Volumes
	out := volume.Config{
		Addresses: c.RDS.Addresses, Port: v.Port, Listen: v.Listen, Name: v.Name,
		StateDir: v.StateDir, SocketDir: v.SocketDir, SocketMode: v.SocketMode.Perm, Attach: v.Attach,
		QueueDepth: v.QueueDepth, MaxIO: int(v.MaxIO), AlwaysInvalidate: &v.AlwaysInvalidate, Allow: prefixes(v.Allow),
		Connections: v.Connections, Heartbeat: v.Heartbeat.Duration, MissedLimit: v.HeartbeatMissed,
		ReconnectMin: v.ReconnectMin.Duration, ReconnectMax: v.ReconnectMax.Duration, Policy: v.Policy,
		IOTimeout: v.IOTimeout.Duration, OnLoss: v.OnLoss, LossTimeout: v.LossTimeout.Duration, Unfenced: v.Unfenced, UnfencedAfter: v.UnfencedAfter.Duration, MaxReconnects: v.MaxReconnects,
		NBDTimeout: v.NBDTimeout.Duration, DeadTimeout: v.DeadTimeout.Duration,
		MaxExports: v.MaxExports, MaxMappings: v.MaxMappings, MaxSessions: v.MaxSessions, MaxConnections: v.MaxConnections,
	}
	switch out.StateDir {
	case "":
		if out.StateDir = c.volumeDir(); c.stateDirectory != "" {
			out.StateDir = filepath.Join(c.stateDirectory, "volumes")
		}
	case noDir:
		out.StateDir = ""
	}
	if out.SocketDir == "" {
		out.SocketDir = c.volumeDir()
	}
	for i := range v.Exports {
		out.Exports = append(out.Exports, v.Exports[i].spec())
	}
	for i := range v.Roots {
		out.Roots = append(out.Roots, v.Roots[i].spec())
	}
	return out
}

func (e *VolumeExport) spec() volume.ExportSpec {
	return volume.ExportSpec{Name: e.Name, Kind: e.Kind, Path: e.Path, Size: uint64(e.Size), Create: e.Create, ReadOnly: e.ReadOnly,
		Shared: e.Shared, LogicalBlock: e.LogicalBlock, Allow: prefixes(e.Allow), Sessions: e.Sessions}
}

func (r *VolumeRoot) spec() volume.RootSpec {
	return volume.RootSpec{Path: r.Path, ReadOnly: r.ReadOnly, Shared: r.Shared, Allow: prefixes(r.Allow), Sessions: r.Sessions}
}

func prefixes(list []Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, p.Prefix)
	}
	return out
}

// volumes has node/volume check its configuration: first the keys, then the
// tables one by one, so that the error can say which.
func (v *validator) volumes() {
	c := v.c.VolumeConfig()
	// Zero means the default there; here it is a number like others.
	for key, zero := range map[string]bool{"port": c.Port == 0, "queue_depth": c.QueueDepth == 0, "max_io_bytes": c.MaxIO == 0,
		"connections": c.Connections == 0, "heartbeat_interval": c.Heartbeat == 0, "heartbeat_missed": c.MissedLimit == 0,
		"reconnect_min": c.ReconnectMin == 0, "reconnect_max": c.ReconnectMax == 0, "io_timeout": c.IOTimeout == 0,
		"loss_timeout": c.LossTimeout == 0, "unfenced_after": c.UnfencedAfter == 0, "max_reconnect_attempts": c.MaxReconnects == 0, "nbd_timeout": c.NBDTimeout == 0, "nbd_dead_timeout": c.DeadTimeout == 0, "socket_mode": c.SocketMode == 0,
		"max_exports": c.MaxExports == 0, "max_mappings": c.MaxMappings == 0, "max_sessions": c.MaxSessions == 0, "max_connections": c.MaxConnections == 0} {
		v.check("volumes."+key, !zero, "0 is out of range")
	}
	v.against("volumes.port", "rds.port", v.c.Volumes.Port != v.c.RDS.Port, "%d is rds.port as well, and only one can listen there", v.c.Volumes.Port)
	v.check("volumes.rdma_port", v.c.Volumes.RDMAPort != 0, "0 is out of range")
	v.check("volumes.rdma", v.c.Volumes.RDMA == RDMAOff || v.c.Volumes.RDMA == RDMASoft, "%q is neither %s nor %s", v.c.Volumes.RDMA, RDMAOff, RDMASoft)
	v.check("volumes.rdma_gso", v.c.Volumes.RDMAGSO == GSOAuto || v.c.Volumes.RDMAGSO == GSOOff, "%q is neither %s nor %s", v.c.Volumes.RDMAGSO, GSOAuto, GSOOff)
	exports, roots := c.Exports, c.Roots
	c.Exports, c.Roots, c.Addresses = nil, nil, nil // rds.addresses are checked already
	v.volumeErrors(c.Validate(), "")
	base := volume.Config{}
	seen := map[string]int{}
	for i, e := range exports {
		at := fmt.Sprintf("volumes.exports[%d]", i)
		base.Exports = []volume.ExportSpec{e}
		v.volumeErrors(base.Validate(), at)
		j, twice := seen[e.Name]
		v.check(at+".name", !twice, "%q is there already, volumes.exports[%d]", e.Name, j)
		seen[e.Name] = i
	}
	base.Exports = nil
	for i, r := range roots {
		base.Roots = []volume.RootSpec{r}
		v.volumeErrors(base.Validate(), fmt.Sprintf("volumes.roots[%d]", i))
	}
	v.check("volumes.max_exports", len(exports) <= v.c.Volumes.MaxExports, "%d, and there are %d [[volumes.exports]]", v.c.Volumes.MaxExports, len(exports))
}

// volumeBounds are keys that bound others, or that those are made of.
var volumeBounds = map[string]string{"volumes.reconnect_min": "volumes.reconnect_max", "volumes.queue_depth": "volumes.max_io_bytes",
	"volumes.state_dir": "api.socket", "volumes.socket_dir": "api.socket"}

// volumeErrors says where what is wrong comes from. An error of node/volume
// begins with its key; at is that of a table.
func (v *validator) volumeErrors(err error, at string) {
	if err == nil {
		return
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, e := range list {
		key, problem, ok := strings.Cut(e.Error(), ": ")
		if !ok {
			key, problem = "volumes", e.Error()
		}
		if at != "" {
			key = at
		}
		v.add(key, volumeBounds[key], problem, "")
	}
}
