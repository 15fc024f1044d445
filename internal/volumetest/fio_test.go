package volumetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fioRun is fio writing and verifying until its time is over.
type fioRun struct {
	t   testing.TB
	cmd *exec.Cmd
	out bytes.Buffer
	err bytes.Buffer
}

// fioResult is what it found.
type fioResult struct {
	reads, writes int64
	longest       time.Duration
}

// startFio needs the program; without it the test goes on without it, outside of CI.
func startFio(t testing.TB, uri string, runtime time.Duration) *fioRun {
	t.Helper()
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed (scripts/setup.sh)")
	}
	f := &fioRun{t: t}
	f.cmd = exec.Command("fio", "--name=v", "--ioengine=nbd", "--uri="+uri, "--rw=randrw", "--bs=4k", "--iodepth=16", "--size=32M",
		"--verify=crc32c", "--verify_backlog=256", "--verify_fatal=1", "--verify_state_save=0", "--time_based", fmt.Sprintf("--runtime=%dms", runtime.Milliseconds()),
		"--rate_iops=3000", "--output-format=json")
	f.cmd.Stdout, f.cmd.Stderr = &f.out, &f.err
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.cmd.Process.Kill()
		f.cmd.Wait()
	})
	return f
}

// wait waits for its end. A byte that is not what was written is an error.
func (f *fioRun) wait() (r fioResult) {
	f.t.Helper()
	if err := f.cmd.Wait(); err != nil {
		f.t.Fatalf("fio: %v\n%s%s", err, f.err.String(), f.out.String())
	}
	var j struct {
		Jobs []struct {
			Error       int
			Read, Write struct {
				TotalIOs int64 `json:"total_ios"`
				Lat      struct {
					Max int64
				} `json:"lat_ns"`
			}
		}
	}
	text := f.out.Bytes()
	if at := strings.Index(f.out.String(), "{"); at > 0 {
		text = text[at:]
	}
	if err := json.Unmarshal(text, &j); err != nil || len(j.Jobs) != 1 {
		f.t.Fatalf("fio's report: %v\n%s", err, f.out.String())
	}
	job := &j.Jobs[0]
	if job.Error != 0 || bytes.Contains(f.err.Bytes(), []byte("verify:")) {
		f.t.Errorf("fio: error %d\n%s", job.Error, f.err.String())
	}
	return fioResult{job.Read.TotalIOs, job.Write.TotalIOs, time.Duration(max(job.Read.Lat.Max, job.Write.Lat.Max))}
}
