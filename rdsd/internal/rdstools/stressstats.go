package rdstools

import (
	"fmt"
	"io"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"time"
)

// sum counts events and adds up what they measured.
type sum struct{ nr, total uint64 }

func (s *sum) add(v uint64) { s.nr++; s.total += v }

func (s sum) avg() float64 {
	if s.nr == 0 {
		return 0
	}
	return float64(s.total) / float64(s.nr)
}

// stats is what one task, or all of them, did.
type stats struct {
	reqTx, reqRx, ackTx, ackRx sum // bytes
	sendUsecs, rttUsecs        sum
	rttBuckets                 [16]uint64 // powers of two of microseconds
}

func (a *stats) sums() [6]*sum {
	return [...]*sum{&a.reqTx, &a.reqRx, &a.ackTx, &a.ackRx, &a.sendUsecs, &a.rttUsecs}
}

func (a *stats) add(b stats) {
	bs := b.sums()
	for i, s := range a.sums() {
		s.nr += bs[i].nr
		s.total += bs[i].total
	}
	for i, n := range b.rttBuckets {
		a.rttBuckets[i] += n
	}
}

// since returns what happened after an earlier reading.
func (a stats) since(b stats) stats {
	bs := b.sums()
	for i, s := range a.sums() {
		s.nr -= bs[i].nr
		s.total -= bs[i].total
	}
	for i, n := range b.rttBuckets {
		a.rttBuckets[i] -= n
	}
	return a
}

func (a *stats) rtt(d time.Duration) {
	us := uint64(max(d.Microseconds(), 0))
	a.rttUsecs.add(us)
	a.rttBuckets[min(max(bits.Len64(us)-1, 0), len(a.rttBuckets)-1)]++
}

// bytes is the payload that went through send and receive calls.
func (a stats) bytes() float64 {
	return float64(a.reqTx.total + a.reqRx.total + a.ackTx.total + a.ackRx.total)
}

func printStressHeading(w io.Writer) {
	fmt.Fprintf(w, "%4s %6s %6s %10s %10s %10s %7s %8s %5s\n",
		"tsks", "tx/s", "rx/s", "tx+rx K/s", "mbi K/s", "mbo K/s", "tx us/c", "rtt us", "cpu %")
}

// printStressLine prints one classic row. The RDMA columns are zero over TCP.
// A running row counts, the last one averages a second.
func printStressLine(w io.Writer, tasks uint16, st stats, over time.Duration, cpu float64, average bool) {
	scale := 1 / over.Seconds()
	tx, rx, tail := float64(st.reqTx.nr), float64(st.reqRx.nr), ""
	if average {
		tx, rx, tail = tx*scale, rx*scale, "  (average)"
	}
	fmt.Fprintf(w, "%4d %6d %6d %10.2f %10.2f %10.2f %7.2f %8.2f %5.2f%s\n",
		tasks, uint64(tx), uint64(rx), scale*st.bytes()/1024, 0.0, 0.0, st.sendUsecs.avg(), st.rttUsecs.avg(), cpu, tail)
}

func printPerfHeading(w io.Writer) {
	fmt.Fprintln(w, "::nr_tasks:count,req_size:bytes,ack_size:bytes,rdma_size:bytes,req_sent:count,thruput:kB/s,"+
		"thruput_rdma_in:kB/s,thruput_rdma_out:kB/s,tx_delay:microseconds,rtt:microseconds,cpu:percent")
}

func printPerfLine(w io.Writer, o *options, st stats, over time.Duration, cpu float64) {
	fmt.Fprintf(w, "::%d,%d,%d,%d,%d,%f,%f,%f,%f,%f,%f\n", o.tasks, o.reqSize, o.ackSize, o.rdmaSize,
		st.reqTx.nr, st.bytes()/1024/over.Seconds(), 0.0, 0.0, st.sendUsecs.avg(), st.rttUsecs.avg(), max(cpu, 0))
}

func printHistogram(w io.Writer, st stats) {
	fmt.Fprintf(w, "\nRTT histogram\nRTT (us)        \t\t    Count\n")
	for i, n := range st.rttBuckets {
		fmt.Fprintf(w, "[%6d - %6d] \t\t %8d\n", 1<<i, 1<<(i+1), n)
	}
}

// cpuMeter gives the share of the machine's CPU time in use since it was last
// asked, from /proc/stat; the old tool burns idle time to find out.
type cpuMeter struct {
	on          bool
	busy, total uint64
}

// percent is -1 when the meter is off or the system does not tell.
func (m *cpuMeter) percent() float64 {
	if !m.on {
		return -1
	}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return -1
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy, total uint64
	for i, f := range strings.Fields(strings.TrimPrefix(line, "cpu")) {
		n, _ := strconv.ParseUint(f, 10, 64)
		if i >= 8 {
			break // guest time is in user time already
		}
		total += n
		if i != 3 && i != 4 { // idle, iowait
			busy += n
		}
	}
	db, dt := busy-m.busy, total-m.total
	m.busy, m.total = busy, total
	if dt == 0 {
		return 0
	}
	return 100 * float64(db) / float64(dt)
}
