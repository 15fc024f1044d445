// Package volumetest proves what is promised of volumes with real processes:
// daemons that export and map, paths that go through proxies which cut, hold,
// delay and lose, stores that stall and fail on command, daemons that are killed.
// Writers and readers know of every block what may be there (disk_test.go);
// fio with checksums runs beside them.
//
// It has tests alone. The daemon whose stores obey is the test binary itself: a
// role in the environment makes it one (store_test.go). What takes long behind
// flags is what make soak runs. Read world_test.go, disk_test.go, failover_test.go.
package volumetest
