package main

// room is a directory of the product and the tests that ought to notice what is
// broken there.
type room struct {
	dir    string
	weight int // how often it is drawn, in proportion
	tests  [][]string
}

// Worlds in which datagrams and volumes are simulated. They are many and cheap, so
// they come before anything that starts daemons.
var (
	datagramWorlds = []string{"./internal/simtest", "-run", "TestSeeds|TestStoppedReader|TestDeterminism", "-sim.seeds=2000"}
	volumeWorlds   = []string{"./internal/simtest", "-run", "TestVolumes", "-sim.volumes=400"}
	deviceWorlds   = []string{"./internal/simtest", "-run", "TestDevices", "-sim.devices=200"}
	clients        = []string{"./node/client"}
	daemons        = []string{"./node"}
	goClients      = []string{"./sdk/go"}
	kills          = []string{"./internal/killtest"}
	volumeDaemons  = []string{"./internal/volumetest"}
)

// rooms are where mutations are drawn. Everything a room's tests list is part of
// "make test".
var rooms = []room{
	{"wire", 2, [][]string{{"./wire"}, {"./conn"}, datagramWorlds}},
	{"wire/rtrs", 1, [][]string{{"./wire/..."}, {"./rtrs"}, {"./rnbd"}, volumeWorlds}},
	{"wire/rnbd", 1, [][]string{{"./wire/..."}, {"./rnbd"}, volumeWorlds}},
	{"cong", 2, [][]string{{"./cong"}, {"./rds"}, datagramWorlds}},
	{"roce", 3, [][]string{{"./roce"}, {"./transport/ib/soft"}, deviceWorlds}},
	{"roce/cm", 3, [][]string{{"./roce/cm"}, {"./transport/ib/soft"}, deviceWorlds}},
	{"conn", 14, [][]string{{"./conn"}, {"./rds"}, datagramWorlds, daemons, goClients, kills}},
	{"rds", 12, [][]string{{"./rds"}, datagramWorlds, daemons, goClients, kills}},
	{"shm", 12, [][]string{{"./shm"}, clients, daemons, goClients, kills}},
	{"rtrs", 9, [][]string{{"./rtrs"}, {"./rnbd"}, volumeWorlds, {"./node/volume"}, volumeDaemons}},
	{"rnbd", 9, [][]string{{"./rnbd"}, volumeWorlds, {"./node/volume"}, volumeDaemons}},
	{"blk", 4, [][]string{{"./blk"}, {"./rnbd"}, {"./blk/nbd"}, {"./node/volume"}, volumeDaemons}},
	{"blk/nbd", 8, [][]string{{"./blk/nbd"}, {"./node/volume"}, volumeDaemons}},
	{"transport", 3, [][]string{{"./transport"}, {"./transport/tcp"}, {"./conn"}, datagramWorlds, daemons}},
	{"transport/tcp", 6, [][]string{{"./transport/tcp"}, daemons, {"./node/volume"}, goClients}},
	{"transport/ib", 3, [][]string{{"./transport/ib"}, {"./transport/ib/soft"}, deviceWorlds, volumeDaemons}},
	{"transport/ib/soft", 2, [][]string{{"./transport/ib/soft"}, deviceWorlds, volumeDaemons}},
	{"internal/reactor", 3, [][]string{{"./internal/reactor"}, {"./transport/tcp"}, clients, daemons, goClients}},
	{"internal/plain", 1, [][]string{{"./internal/plain"}, {"./node/health"}, {"./rdsd/..."}}},
	{"internal/unixsock", 1, [][]string{{"./internal/unixsock"}, daemons, {"./node/volume"}}},
	{"node/config", 2, [][]string{{"./node/config"}, daemons, {"./rdsd/..."}}},
	{"node/health", 1, [][]string{{"./node/health"}, daemons, {"./rdsd/..."}}},
	{"node/access", 1, [][]string{{"./node/access"}, clients, daemons, goClients}},
	{"node/base", 1, [][]string{{"./node/base"}, clients, daemons, goClients}},
	{"node/peers", 2, [][]string{{"./node/peers"}, {"./node/datagram"}, daemons, {"./node/volume"}}},
	{"node/datagram", 4, [][]string{{"./node/datagram"}, datagramWorlds, clients, daemons, goClients, kills}},
	{"api/rdsd/v1/fastwire", 1, [][]string{{"./api/rdsd/v1/fastwire"}, clients, goClients}},
	{"node/client", 4, [][]string{clients, daemons, goClients, kills}},
	{"node/page/hour", 1, [][]string{{"./node/page/..."}}},
	{"node/page", 2, [][]string{{"./node/page/..."}, daemons}},
	{"node/service", 4, [][]string{{"./node/service"}, daemons, goClients, {"./rdsd/..."}}},
	{"node", 4, [][]string{daemons, goClients, kills, {"./rdsd/..."}}},
	{"node/volume", 6, [][]string{{"./node/volume"}, volumeDaemons, {"./rdsd/..."}}},
	{"sdk/go", 9, [][]string{goClients, kills, {"./rdsd/..."}}},
}
