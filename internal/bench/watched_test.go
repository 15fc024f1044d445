package bench

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"time"

	"github.com/creack/pty"
)

// beside starts what runs beside a measurement of these daemons.
type beside func(w *world, ds []*daemon) error

// pages are the topics of three pages as a browser asks for them: the overview,
// congestion, and the sockets (node/page/assets).
var pages = []string{
	"status,peers,sockets,counters,congestion,history,volumes,paths",
	"status,peers,sockets,congestion,history",
	"status,sockets",
}

// watched has an operator look at the first daemon: three pages, rdsd top in a terminal,
// and a scrape of every daemon each second.
func watched(w *world, ds []*daemon) error {
	a := args{Target: ds[0].target, Program: rdsdBinary, Collector: true}
	for _, d := range ds {
		a.Dst = append(a.Dst, d.http)
	}
	p, err := w.role(roleWatch, a)
	if err != nil {
		return err
	}
	return w.ready(p)
}

var roleWatch = register("watch", func(r *role) error {
	begun, failed := make(chan string), make(chan error)
	for _, topics := range pages {
		go func() { failed <- readPage("http://"+r.Dst[0]+"/api/v1/events?topics="+topics, begun) }()
	}
	for _, at := range r.Dst {
		go func() { failed <- scrape("http://"+at+"/metrics", begun) }()
	}
	top := exec.Command(r.Program, "top", "--socket", r.Target)
	terminal, err := pty.StartWithSize(top, &pty.Winsize{Rows: 40, Cols: 120})
	if err != nil {
		return err
	}
	go func() {
		screen := bufio.NewReader(terminal)
		_, err := screen.ReadByte()
		if err == nil {
			begun <- "top"
			_, err = io.Copy(io.Discard, screen)
		}
		failed <- fmt.Errorf("top has ended: %v", err)
	}()
	for left := len(pages) + len(r.Dst) + 1; ; {
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
