// Package monitoring is what people see of rdsd in Prometheus and Grafana: the dashboards
// of packaging/grafana and the rules of packaging/prometheus, as tables from which its
// tests write those files and check them.
//
// Nobody links it into a program; it starts no goroutine and holds no lock. Its tests
// hold every expression against a real Prometheus that scrapes two daemons.
//
// Read alerts.go, cluster.go (the shortest dashboard) and world_test.go.
package monitoring
