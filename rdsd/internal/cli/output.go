package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/rdsd/rdsd/internal/plain"
)

// column is one column of a list of T: its heading and its cell.
type column[T any] struct {
	name string
	cell func(T) any
}

// printList shows items: a table for people, one JSON array or lines of tab-separated
// values for programs.
func printList[T any](a *app, items []T, cols []column[T], none string) error {
	if a.form == formTSV {
		return writeTSV(a.out, items)
	}
	if a.json {
		if items == nil {
			items = []T{}
		}
		return writeJSON(a.out, items)
	}
	if len(items) == 0 {
		fmt.Fprintln(a.out, none)
		return nil
	}
	writeTable(a.out, items, cols)
	return nil
}

// writeTable writes one aligned row for each item. Numbers, sizes and times go
// to the right.
func writeTable[T any](w io.Writer, items []T, cols []column[T]) {
	t := newTable(w)
	head := make(table.Row, len(cols))
	configs := make([]table.ColumnConfig, len(cols))
	for i, c := range cols {
		head[i] = c.name
		configs[i] = table.ColumnConfig{Number: i + 1}
		if len(items) > 0 && isQuantity(c.cell(items[0])) {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.AppendHeader(head)
	t.SetColumnConfigs(configs)
	for _, it := range items {
		row := make(table.Row, len(cols))
		for i, c := range cols {
			row[i] = plain.Text(fmt.Sprint(c.cell(it)))
		}
		t.AppendRow(row)
	}
	t.Render()
}

func newTable(w io.Writer) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	return t
}

func isQuantity(v any) bool {
	switch v.(type) {
	case int, int64, uint32, uint64, float64, bytesCount, duration:
		return true
	}
	return false
}

// writeJSON writes one document, indented for the occasional reader.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", plain.JSON(b))
	return err
}

// writeNDJSON writes one line of a stream.
func writeNDJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", plain.JSON(b))
	return err
}

// did says what a command has done: a line for people, v for programs.
func (a *app) did(v any, format string, args ...any) error {
	if a.json {
		return writeJSON(a.out, v)
	}
	return say(a.out, format+"\n", args...)
}

// say prints format with words of somebody else in it, names of volumes and sessions, why something
// failed, so that a terminal shows them and does nothing else, and none of them looks like a line of ours.
func say(w io.Writer, format string, args ...any) error {
	shown := make([]any, len(args))
	for i, v := range args {
		switch shown[i] = v; v := v.(type) {
		case error:
			shown[i] = plain.Lines(v.Error())
		case fmt.Stringer: // ours
		default:
			if s := reflect.ValueOf(v); s.Kind() == reflect.String {
				shown[i] = plain.Text(s.String())
			}
		}
	}
	_, err := fmt.Fprintf(w, format, shown...)
	return err
}

// bytesCount is a number of bytes: a plain number in JSON, KiB, MiB for people.
type bytesCount uint64

func (b bytesCount) String() string { return plain.Bytes(float64(b)) }

// duration is a time in nanoseconds: a plain number in JSON, rounded for people.
type duration time.Duration

func (d duration) String() string { return plain.Duration(time.Duration(d)) }

// keeper is an output that keeps the first error of writing to it. Tables are printed
// piece by piece, and a command that could not print is a command that failed.
type keeper struct {
	w   io.Writer
	mu  sync.Mutex
	err error // guarded by mu
}

func (k *keeper) Write(b []byte) (int, error) {
	n, err := k.w.Write(b)
	if err != nil {
		k.mu.Lock()
		if k.err == nil {
			k.err = err
		}
		k.mu.Unlock()
	}
	return n, err
}

// failed returns that error.
func (k *keeper) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// lost reports whether something could not be printed: what goes on until it is interrupted ends then, for
// nobody hears of it any more.
func (a *app) lost() bool {
	k, ok := a.out.(*keeper)
	return ok && k.failed() != nil
}

// fileOf returns the file that w writes to, if it is one.
func fileOf(w io.Writer) (*os.File, bool) {
	if k, ok := w.(*keeper); ok {
		w = k.w
	}
	f, ok := w.(*os.File)
	return f, ok
}
