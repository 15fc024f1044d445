package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// readInput yields what is read from --file or standard input. Reading waits for as long as
// nothing comes, so it has a goroutine of its own, and Ctrl-C and --timeout end the wait.
func (a *app) readInput(ctx context.Context, o sendOptions, yield func(p []byte, more bool) error) error {
	type piece struct {
		p    []byte
		more bool
		err  error
	}
	pieces, gone := make(chan piece), make(chan struct{})
	defer close(gone)
	put := func(x piece) error {
		select {
		case pieces <- x:
			return nil
		case <-gone:
			return context.Canceled
		}
	}
	go func() { // ends with its input, or with the process
		defer close(pieces)
		if err := a.input(o, func(p []byte, more bool) error { return put(piece{p, more, nil}) }); err != nil {
			put(piece{err: err})
		}
	}()
	for {
		select {
		case x, ok := <-pieces:
			switch {
			case !ok:
				return nil
			case x.err != nil:
				return x.err
			}
			if err := yield(x.p, x.more); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// input reads --file or standard input.
func (a *app) input(o sendOptions, yield func(p []byte, more bool) error) error {
	in, name := a.in, "standard input"
	if o.file != "" && o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return usagef("--file: %v", err)
		}
		defer f.Close()
		in, name = f, o.file
	}
	if o.lines {
		return lines(in, name, yield)
	}
	b, err := io.ReadAll(io.LimitReader(in, maxDatagramBytes+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(b) > maxDatagramBytes {
		return usagef("%s has more than %d bytes (1 MiB), the most a datagram can have; use --lines or split it", name, maxDatagramBytes)
	}
	return yield(b, true)
}

// lines yields the lines of in without their ends.
func lines(in io.Reader, name string, yield func(p []byte, more bool) error) error {
	r := bufio.NewReaderSize(in, maxDatagramBytes+len("\r\n"))
	for {
		b, err := r.ReadSlice('\n')
		if err != nil && err != io.EOF && !errors.Is(err, bufio.ErrBufferFull) {
			return usagef("%s: %v", name, err)
		}
		if err == io.EOF && len(b) == 0 {
			return nil
		}
		line := bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		if len(line) > maxDatagramBytes || errors.Is(err, bufio.ErrBufferFull) {
			return usagef("%s: a line is too long; a line is one datagram of at most %d bytes", name, maxDatagramBytes)
		}
		line = bytes.Clone(line)
		next, _ := r.Peek(r.Buffered())
		if e := yield(line, bytes.IndexByte(next, '\n') >= 0); e != nil || err == io.EOF {
			return e
		}
	}
}
