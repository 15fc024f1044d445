package bench

import (
	"fmt"
	"time"
)

// places are the stores in words.
var places = map[string]string{"memory": "memory", "file": "a file", "tmpfs": "a file on tmpfs"}

// onTmpfs is the only load of its store: a file system that knows no RWF_NOWAIT is read in
// another way, which a single reader feels most.
const onTmpfs = "4k-read-1"

const idleVolumes = "rdsd, idle sessions of volumes"

var (
	volumePrograms = map[string]bool{}
	volumeSmoke    = map[string]bool{} // those that the tests try
)

// volumeBars are what a row of a load must reach against the best chain of two
// servers, and against the best single server over TCP; 0: for orientation.
var volumeBars = map[string]struct{ chain, single float64 }{
	"4k-read": {1.8, 0.75}, "4k-write": {1.8, 0.75},
	"4k-read-1": {1.5, 0}, "4k-write-1": {1.5, 0},
	"128k-read": {1.3, 0.8}, "128k-write": {1.3, 0.8},
	"1m-read": {1.3, 0.8}, "1m-write": {1.3, 0.8},
}

// roceVolumeBars are what a volume in memory over RoCEv2 in user space must reach against the
// same one over TCP.
var roceVolumeBars = map[string]float64{"4k-read": 0.4, "4k-write": 0.4, "128k-read": 0.45, "128k-write": 0.45}

var (
	kilo  = metric{"k/s", func(s sample) float64 { return s.rate / 1e3 }}
	mib   = metric{"MiB", func(s sample) float64 { return s.rate }}
	perIO = metric{"an I/O", func(s sample) float64 { return s.allocs }}
)

func init() {
	for _, store := range stores {
		for i, l := range ioLoads {
			if store == "tmpfs" && l.row != onTmpfs {
				continue
			}
			of := func(server string) string { return fmt.Sprintf("%s, %s, %s", server, store, l.name) }
			add := func(server string, p func(time.Duration) (sample, error)) string {
				name := of(server)
				programs[name] = p
				volumePrograms[name] = true
				volumeSmoke[name] = store == "memory" && i == 0 || store == "file" && i == 1
				return name
			}
			group := func(name string, servers []string) string {
				for _, s := range servers {
					groups[name] = append(groups[name], add(s, volume(s, store, l)))
				}
				return name
			}
			bars := volumeBars[l.row]
			chain := row{name: "volume-" + l.row + "-" + store, what: "volume in " + places[store] + ", " + l.name + ", against the best chain of two servers",
				ours: add("rdsd", rdsdVolume(store, overTCP, l)), metric: kilo, base: group(of("chains"), chainServers), bar: bars.chain}
			if store == "tmpfs" {
				chain.name = "volume-tmpfs-qd1"
			}
			if l.bytes > 4<<10 {
				chain.metric = gigabytes(l.bytes)
			}
			single := chain
			single.name, single.what = chain.name+"-single", "the same against the best single server over TCP"
			single.base, single.bar = group(of("single servers"), singleServers), bars.single
			allRows = append(allRows, chain, single)
			if bar := roceVolumeBars[l.row]; store == "memory" && bar != 0 {
				roce := row{name: "volume-roce-" + l.row, what: "volume in memory over RoCEv2 in user space, MTU 4096, " + l.name + ", two daemons, against the same over TCP",
					ours: add("rdsd over RoCEv2", rdsdVolume(store, overRoCE, l)), metric: chain.metric, base: of("rdsd"), bar: bar}
				allRows = append(allRows, roce)
			}
			if allocs := of("rdsd, allocations"); store == "memory" && i == 0 || store == "file" && i == 1 {
				programs[allocs] = rdsdVolumeAllocs(store, l)
				once[allocs] = true
				allRows = append(allRows, row{name: chain.name + "-allocs", what: "its allocations in both daemons", ours: allocs,
					metric: perIO, most: true, bar: none})
			}
		}
	}
	// A write to a file is handed to a worker, one to memory is done where it comes in:
	// what stands between them is the hand-over and the page cache.
	for _, l := range ioLoads {
		if l.row == "4k-write" || l.row == "4k-write-1" {
			allRows = append(allRows, row{name: "volume-" + l.row + "-handover", what: "volume, " + l.name + ", a file against memory: the hand-over to a worker",
				ours: "rdsd, file, " + l.name, metric: kilo, base: "rdsd, memory, " + l.name, bar: none})
		}
	}
	programs[idleVolumes] = rdsdIdleVolumes
	once[idleVolumes] = true
	allRows = append(allRows, row{name: "volume-idle", what: "an idle session after use, in the daemon where it takes more: resident memory", ours: idleVolumes, metric: mib, most: true, bar: 1})
}
