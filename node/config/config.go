package config

import (
	"net/netip"
	"strings"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rtrs"
)

// Version is the only value `version` may have in a configuration file.
const Version = 1

// DefaultRDSPort is the TCP port of RDS over TCP (net/rds/tcp.h).
const DefaultRDSPort = 16385

// DefaultSocket is where clients look for the daemon unless RDSD_SOCKET says otherwise.
const DefaultSocket = "/run/rdsd/rdsd.sock"

// DefaultHTTP is where metrics and health are served unless configured.
const DefaultHTTP = "127.0.0.1:16386"

// Config is everything a node can be told. Start from Default or
// Load; the zero Config is not valid. Units are in the names; the text
// forms accept "64KiB" for bytes and "1.5s" for durations.
//
// The tags are the one list of keys: toml names the key, flag and env name the
// overrides (a key without env tag is RDSD_<SECTION>_<KEY>), usage is the help
// text and want says what would be right. Where there is a reload tag, a change of the
// key takes effect while the node runs (Node.Reload).
type Config struct {
	Version int         `toml:"version" env:"-" usage:"format of this file" want:"1"`
	RDS     RDS         `toml:"rds"`
	Reactor Reactor     `toml:"reactor"`
	API     API         `toml:"api"`
	HTTP    HTTP        `toml:"http"`
	Volumes Volumes     `toml:"volumes"`
	Limits  Limits      `toml:"limits"`
	Log     Log         `toml:"log"`
	Ports   []PortGrant `toml:"ports" reload:"yes"`
	Peers   []PeerRule  `toml:"peers" reload:"yes"`

	file    string
	origins map[string]Origin
	notes   []string
	numbers map[string]string // numbers and booleans of the file, for error messages
	capital []error           // keys of the file that are known but for capital letters
	unread  map[string]bool   // keys whose value could not be read: what they hold nobody has asked for

	stateDirectory string // what systemd has made for us, "" without it
}

// RDS is the wire side: who we are and how we talk to peers.
type RDS struct {
	Addresses         []netip.Addr `toml:"addresses" env:"RDSD_ADDRESS" flag:"address" usage:"local address of this node, IPv4 or IPv6; may be repeated" want:"addresses of this machine, such as \"10.0.0.1\" or \"fd00::1\", without port or mask"`
	Port              uint16       `toml:"port" env:"RDSD_PORT" flag:"port" usage:"TCP port of RDS, the same on all nodes" want:"a TCP port, 1 to 65535 (kernels use 16385)"`
	Lanes             int          `toml:"lanes" flag:"lanes" usage:"most connections to one peer" want:"1 to 8"`
	SendBufferBytes   Bytes        `toml:"send_buffer_bytes" usage:"send buffer of a socket that does not ask" want:"a size such as \"1MiB\", at least 4KiB and at most rds.send_buffer_max_bytes"`
	RecvBufferBytes   Bytes        `toml:"recv_buffer_bytes" usage:"receive buffer (soft limit) of a socket that does not ask" want:"a size such as \"1MiB\", at least 4KiB and at most rds.recv_buffer_max_bytes"`
	SendBufferMax     Bytes        `toml:"send_buffer_max_bytes" usage:"largest send buffer a socket may ask for" want:"a size such as \"64MiB\", at most limits.memory_bytes"`
	RecvBufferMax     Bytes        `toml:"recv_buffer_max_bytes" usage:"largest receive buffer a socket may ask for" want:"a size such as \"64MiB\", at most limits.memory_bytes"`
	TCPBufferBytes    Bytes        `toml:"tcp_buffer_bytes" usage:"what TCP may hold of one lane at the sender, and a third more at the receiver (of lanes there are up to 8 a peer); 0: as the kernel sees fit" want:"0, or a size such as \"256KiB\", 16KiB to 64MiB"`
	TCPCongestion     string       `toml:"tcp_congestion" usage:"TCP congestion control of links and volume connections; empty: the kernel's default. One that paces (bbr) costs up to half the throughput within a rack" want:"a name such as \"cubic\" or \"dctcp\", or \"\""`
	HardLimitFactor   int          `toml:"hard_limit_factor" usage:"hard receive limit as a multiple of the soft one" want:"2 to 64"`
	ReconnectMin      Duration     `toml:"reconnect_min" usage:"first reconnect delay (full jitter)" want:"a duration such as \"100ms\", at least 1ms and at most rds.reconnect_max"`
	ReconnectMax      Duration     `toml:"reconnect_max" usage:"largest reconnect delay (full jitter)" want:"a duration such as \"5s\", at most 10m"`
	HeartbeatInterval Duration     `toml:"heartbeat_interval" usage:"silence after which another rdsd is sent a heartbeat" want:"a duration such as \"10s\", 100ms to 10m, shorter than rds.heartbeat_timeout"`
	HeartbeatTimeout  Duration     `toml:"heartbeat_timeout" usage:"silence after which a link to another rdsd is given up" want:"a duration such as \"20s\", longer than rds.heartbeat_interval"`
	RestartHold       Duration     `toml:"restart_hold" usage:"how long, after a start, ports that were bound before are held for the users who had them; 0s: not at all" want:"a duration such as \"3s\", 0s to 1m"`
	PingEnable        bool         `toml:"ping_enable" usage:"answer pings and handshakes of kernels; those of other rdsd are answered always" want:"true or false"`
	Pairs             string       `toml:"pairs" env:"RDSD_PAIRS" flag:"pairs" usage:"memory by which two sockets of one user and address exchange a busy flow without the daemon on the way: auto or off" want:"\"auto\" or \"off\""`
	LowPortsBelow     uint16       `toml:"low_ports_below" reload:"yes" usage:"RDS ports below this one need a [[ports]] grant or root; 0: none do" want:"a port, 0 to 65535"`
}

// Values of rds.pairs.
const (
	PairsAuto = "auto"
	PairsOff  = "off"
)

// Reactor is the threads that move datagrams between rings, sockets and peers.
type Reactor struct {
	Threads int      `toml:"threads" usage:"threads that serve links and rings; 0: one, from five processors on two" want:"0 to 64; with reactor.cpus 0, or as many as there are processors in it"`
	Spin    Duration `toml:"spin" usage:"how long an idle thread looks for work, yielding, before it sleeps; 0s: not at all, nor with one processor alone" want:"a duration such as \"50us\", 0s to 10ms"`
	CPUs    []int    `toml:"cpus" usage:"processors the threads are bound to, one each; empty: any" want:"a list of processor numbers such as [2, 3], one for each of reactor.threads"`
}

// API is the gRPC side.
type API struct {
	Socket        string   `toml:"socket" env:"RDSD_SOCKET" flag:"socket" usage:"Unix socket for clients" want:"an absolute path of at most 101 bytes, such as \"/run/rdsd/rdsd.sock\", or \"@name\" for an abstract socket"`
	SocketMode    FileMode `toml:"socket_mode" usage:"mode of the Unix socket" want:"octal permissions such as \"0660\""`
	SocketGroup   string   `toml:"socket_group" flag:"socket-group" usage:"group of the Unix socket, a name in /etc/group or a number; empty: the daemon's own" want:"the number of a group, or its name in /etc/group"`
	RemoteListen  string   `toml:"remote_listen" flag:"remote" usage:"TCP address for remote gRPC clients; empty: none" want:"\"address:port\" such as \"10.0.0.1:16387\", or \"\" for none"`
	Insecure      bool     `toml:"insecure" flag:"insecure" usage:"allow the remote listener although it has neither encryption nor identity" want:"true or false"`
	Ledger        string   `toml:"ledger" usage:"file, best on a tmpfs, for what must outlive the daemon; empty: the socket's path with .ledger added; none: no such file" want:"an absolute path such as \"/run/rdsd/rdsd.sock.ledger\", \"none\" or \"\""`
	AdminUIDs     []uint32 `toml:"admin_uids" reload:"yes" usage:"users, beside root and the daemon's own, who may change things through the Admin service" want:"a list of user numbers such as [1000, 1001]"`
	CallsPerSec   float64  `toml:"calls_per_second" reload:"yes" usage:"calls (streams opened count as one) a user may make per second" want:"a number above 0, at most 1000000"`
	CallsBurst    int      `toml:"calls_burst" reload:"yes" usage:"calls a user may make at once" want:"1 to 1000000"`
	PushBatchSize Bytes    `toml:"push_batch_bytes" reload:"yes" usage:"most payload put into one message to a client (a larger datagram goes alone)" want:"a size, 4KiB to 1MiB"`
	DrainTimeout  Duration `toml:"drain_timeout" reload:"yes" env:"RDSD_DRAIN_TIMEOUT" flag:"drain-timeout" usage:"how long to wait for datagrams in flight when stopping" want:"a duration such as \"10s\", 0s to 10m"`
}

// HTTP is the page for monitoring.
type HTTP struct {
	Listen string `toml:"listen" env:"RDSD_HTTP" flag:"http" usage:"address of the page, /api/v1, /metrics, /healthz and /readyz; unix:PATH: a socket with the mode and group of the clients'; empty: off" want:"\"address:port\" such as \"127.0.0.1:16386\", \"unix:/run/rdsd/http.sock\", or \"\" for off"`
	Pprof  bool   `toml:"pprof" usage:"serve /debug/pprof as well" want:"true or false"`
	// Names and PeerPage are for the page that people look at.
	Names    []string `toml:"names" reload:"yes" usage:"names of this machine that the page is opened by, beside addresses and localhost" want:"a list of host names in lower case, such as [\"node7.example.net\"]"`
	PeerPage string   `toml:"peer_page" reload:"yes" usage:"where the pages of other nodes are, {address} standing for a peer's address; empty: no links to them" want:"a URL such as \"http://{address}:16386/\", or \"\""`
}

// Limits is the budget. When a share is spent, new work is
// refused with a reason and old work goes on.
type Limits struct {
	MemoryBytes      Bytes `toml:"memory_bytes" usage:"all that is held for clients and peers; the resident memory of the process stays below it and 64 MiB" want:"a size such as \"1GiB\", at least 16MiB"`
	MaxPeers         int   `toml:"max_peers" usage:"peers kept at once" want:"1 to 65536"`
	MaxSockets       int   `toml:"max_sockets" usage:"sockets of all users" want:"1 to 65534 for each local address"`
	MaxSocketsPerUID int   `toml:"max_sockets_per_uid" reload:"yes" usage:"sockets of one user" want:"1 to limits.max_sockets"`
	MaxClients       int   `toml:"max_clients" reload:"yes" usage:"client connections of all users" want:"1 to 65536"`
	MaxClientsPerUID int   `toml:"max_clients_per_uid" reload:"yes" usage:"client connections of one user" want:"1 to limits.max_clients"`
	MaxDescriptors   int   `toml:"max_descriptors" usage:"file descriptors; 0: what the system allows" want:"0, or at least 64"`
	MaxHandshakes    int   `toml:"max_handshakes" reload:"yes" usage:"accepted connections whose peer has not identified itself yet" want:"1 to 65536"`
	MaxDials         int   `toml:"max_dials" reload:"yes" usage:"connections to peers that are being made at once" want:"1 to 65536"`
}

// Log is where lines go and how many.
type Log struct {
	Level     LogLevel `toml:"level" reload:"yes" env:"RDSD_LOG_LEVEL" flag:"log-level" usage:"least important level logged" want:"debug, info, warn or error"`
	Format    string   `toml:"format" env:"RDSD_LOG_FORMAT" flag:"log-format" usage:"form of a log line" want:"text or json"`
	LinesPerS float64  `toml:"lines_per_second" reload:"yes" usage:"lines of one message allowed per second; the rest are counted" want:"a number above 0, at most 100000"`
}

// PortGrant says who may bind the RDS ports of a range.
type PortGrant struct {
	UID       *uint32   `toml:"uid" usage:"user granted" want:"a user number"`
	GID       *uint32   `toml:"gid" usage:"group granted (the client's own group, not supplementary ones)" want:"a group number"`
	Range     PortRange `toml:"range" usage:"ports, both ends included" want:"\"5000-5999\" or \"5000\", within 2 to 65535"`
	Exclusive bool      `toml:"exclusive" usage:"refuse these ports to everybody without a grant for them" want:"true or false"`
}

// PeerRule allows peers. The longest prefix that contains an address decides.
type PeerRule struct {
	Address Prefix   `toml:"address" usage:"address or subnet allowed as peer" want:"an address or subnet such as \"10.0.0.7\" or \"10.0.0.0/24\""`
	Kernel  bool     `toml:"kernel" usage:"allow kernel peers, which cannot prove who they are" want:"true or false"`
	Deny    bool     `toml:"deny" usage:"refuse instead of allow" want:"true or false"`
	UIDs    []uint32 `toml:"uids,omitempty" usage:"users of this machine, beside root and the daemon's own, who may be such a peer" want:"a list of user numbers such as [1000, 1001]"`
}

// Default is the node without any configuration: loopback only.
func Default() *Config {
	return &Config{
		Version: Version,
		RDS: RDS{
			Addresses:         []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})},
			Port:              DefaultRDSPort,
			Lanes:             8,
			SendBufferBytes:   1 << 20,
			RecvBufferBytes:   1 << 20,
			SendBufferMax:     64 << 20,
			RecvBufferMax:     64 << 20,
			TCPBufferBytes:    96 << 10,
			TCPCongestion:     "cubic",
			HardLimitFactor:   4,
			ReconnectMin:      Duration{100 * time.Millisecond},
			ReconnectMax:      Duration{5 * time.Second},
			HeartbeatInterval: Duration{10 * time.Second},
			HeartbeatTimeout:  Duration{20 * time.Second},
			RestartHold:       Duration{3 * time.Second},
			PingEnable:        true,
			Pairs:             PairsAuto,
			LowPortsBelow:     1024,
		},
		Reactor: Reactor{Spin: Duration{reactor.DefaultSpin}},
		API: API{
			Socket:        DefaultSocket,
			SocketMode:    FileMode{0o660},
			CallsPerSec:   1000,
			CallsBurst:    2000,
			PushBatchSize: 256 << 10,
			DrainTimeout:  Duration{10 * time.Second},
		},
		HTTP: HTTP{Listen: DefaultHTTP, Names: []string{}},
		Volumes: Volumes{
			Listen:           volume.ListenAuto,
			Port:             volume.DefaultPort,
			RDMA:             RDMAOff,
			RDMAPort:         DefaultRDMAPort,
			RDMAGSO:          GSOAuto,
			SocketMode:       FileMode{0o600},
			Attach:           volume.AsSocket,
			QueueDepth:       512,
			MaxIO:            256 << 10,
			AlwaysInvalidate: true,
			Connections:      1,
			Heartbeat:        Duration{200 * time.Millisecond},
			HeartbeatMissed:  4,
			ReconnectMin:     Duration{100 * time.Millisecond},
			ReconnectMax:     Duration{5 * time.Second},
			Policy:           rtrs.MinInflight.String(),
			IOTimeout:        Duration{30 * time.Second},
			OnLoss:           volume.OnLossWait,
			Unfenced:         volume.UnfencedAfter,
			UnfencedAfter:    Duration{40 * time.Second},
			MaxReconnects:    volume.NoLimit,
			LossTimeout:      Duration{30 * time.Second},
			NBDTimeout:       Duration{10 * time.Second},
			DeadTimeout:      Duration{time.Minute},
			MaxExports:       1024,
			MaxMappings:      256,
			MaxSessions:      256,
			MaxConnections:   32 << 10,
		},
		Limits: Limits{
			MemoryBytes:      1 << 30,
			MaxPeers:         4096,
			MaxSockets:       16384,
			MaxSocketsPerUID: 4096,
			MaxClients:       4096,
			MaxClientsPerUID: 1024,
			MaxHandshakes:    256,
			MaxDials:         256,
		},
		Log: Log{Format: "text", LinesPerS: 20},
	}
}

// File is the configuration file that was read, "" when there was none.
func (c *Config) File() string { return c.file }

// Notes are remarks of the loader worth a log line: an RDSD_ variable that
// names no key, for example.
func (c *Config) Notes() []string { return c.notes }

// LedgerPath is where the ledger is; "": nowhere.
func (c *Config) LedgerPath() string {
	switch {
	case c.API.Ledger == "none", c.API.Ledger == "" && strings.HasPrefix(c.API.Socket, "@"):
		return ""
	case c.API.Ledger != "":
		return c.API.Ledger
	}
	return c.API.Socket + ".ledger"
}
