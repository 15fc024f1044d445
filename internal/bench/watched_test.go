package bench

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
)

// pages are the topics of three pages as a browser asks for them: the overview,
// congestion, and the sockets (node/page/assets).
var pages = []string{
	"status,peers,sockets,counters,congestion,history,volumes,paths",
	"status,peers,sockets,congestion,history",
	"status,sockets",
}

// turns are the windows of a watched program: whether somebody looks. Rounds of
// saturated processors differ by more than what looking costs, so both are measured
// in the same processes, and either comes first as often.
var turns = []bool{false, true, true, false, false, true, true, false}

// watched measures what run starts, which counts in wordCount, with an operator who looks
// at it and without, by turns of d.
func watched(run func(*world, []*daemon) (*proc, error)) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(2 * time.Duration(len(turns)) * d)
		defer w.close()
		ds, err := w.daemons(nodeA, nodeB)
		if err != nil {
			return sample{}, err
		}
		p, err := run(w, ds)
		if err != nil {
			return sample{}, err
		}
		var with, without []sample
		var who *lookers
		for _, look := range turns {
			if look && who == nil {
				if who, err = w.look(ds); err != nil {
					return sample{}, err
				}
			} else if !look && who != nil {
				who.leave()
				who = nil
			}
			busy, begun := who.cpu(), time.Now()
			s, err := w.window(p, wordCount, d)
			if err != nil {
				return sample{}, err
			}
			s.busy = float64(who.cpu()-busy) / float64(time.Since(begun))
			if look {
				with = append(with, s)
			} else {
				without = append(without, s)
			}
		}
		s, plain := mean(with), mean(without)
		s.unwatched = &plain
		return s, nil
	}
}

// mean of the samples' rates, round trips and shares of a core.
func mean(of []sample) (m sample) {
	n := len(of)
	for _, s := range of {
		m.rate += s.rate / float64(n)
		m.p50 += s.p50 / time.Duration(n)
		m.busy += s.busy / float64(n)
	}
	return m
}

// lookers are an operator's programs.
type lookers struct {
	w        *world
	procs    []*proc
	terminal *os.File
}

// look has an operator look at the first daemon: three pages, rdsd top in a terminal,
// and a scrape of every daemon each second.
func (w *world) look(ds []*daemon) (*lookers, error) {
	a := args{Collector: true}
	for _, d := range ds {
		a.Dst = append(a.Dst, d.http)
	}
	reader, err := w.role(roleWatch, a)
	if err != nil {
		return nil, err
	}
	l := &lookers{w: w, procs: []*proc{reader}}
	terminal, tty, err := pty.Open()
	if err != nil {
		return nil, err
	}
	defer tty.Close()
	l.terminal = terminal
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		return nil, err
	}
	cmd := exec.Command(rdsdBinary, "top", "--socket", ds[0].target)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	top, err := w.start("rdsd top", cmd, nil)
	if err != nil {
		return nil, err
	}
	l.procs = append(l.procs, top)
	var drawn atomic.Bool
	go func() { // until the terminal is closed
		screen := make([]byte, 64<<10)
		for {
			if _, err := terminal.Read(screen); err != nil {
				return
			}
			drawn.Store(true)
		}
	}()
	if err := w.until("top draws", drawn.Load); err != nil {
		return nil, err
	}
	return l, w.ready(reader)
}

// leave ends them.
func (l *lookers) leave() {
	l.w.ends = append(l.w.ends, l.procs...)
	for _, p := range l.procs {
		p.cmd.Process.Kill()
		<-p.exited
	}
	l.terminal.Close()
}

// cpu is what they have used; nobody uses nothing.
func (l *lookers) cpu() (sum time.Duration) {
	if l == nil {
		return 0
	}
	for _, p := range l.procs {
		sum += p.cpu()
	}
	return sum
}

var roleWatch = register("watch", func(r *role) error {
	begun, failed := make(chan string), make(chan error)
	for _, topics := range pages {
		go func() { failed <- readPage("http://"+r.Dst[0]+"/api/v1/events?topics="+topics, begun) }()
	}
	for _, at := range r.Dst {
		go func() { failed <- scrape("http://"+at+"/metrics", begun) }()
	}
	for left := len(pages) + len(r.Dst); ; {
		select {
		case err := <-failed:
			return err
		case <-begun:
			if left--; left == 0 {
				r.board.set(wordReady, 1)
			}
		}
	}
})

// readPage takes the events of a page as they come.
func readPage(url string, begun chan<- string) error {
	a, err := http.Get(url)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, a.Status)
	}
	events := bufio.NewReader(a.Body)
	for i := 0; ; i++ {
		line, err := events.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return fmt.Errorf("%s: %w", url, err)
		}
		if i == 3 { // behind the greeting: a view
			begun <- string(line)
		}
	}
}

func scrape(url string, begun chan<- string) error {
	for i := 0; ; i++ {
		a, err := http.Get(url)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, a.Body)
		a.Body.Close()
		if err != nil || n < 1000 {
			return fmt.Errorf("%s: %d bytes, %v", url, n, err)
		}
		if i == 0 {
			begun <- url
		}
		time.Sleep(time.Second)
	}
}
