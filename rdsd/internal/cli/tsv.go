package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/internal/plain"
)

// The forms of -o.
const (
	formTable = "table"
	formJSON  = "json"
	formTSV   = "tsv"
)

// listed marks a command that prints one list, and so has the form tsv.
const listed = "rdsd-list"

// aList marks cmd as one that prints one list.
func aList(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{listed: "yes"}
	return cmd
}

// chooseForm reads -o and --json before a command runs.
func (a *app) chooseForm(cmd *cobra.Command, _ []string) error {
	switch a.form {
	case formTable:
	case formJSON:
		a.json = true
	case formTSV:
		if cmd.Annotations[listed] == "" {
			return usagef("-o tsv is for commands that print one list, and %s does not; -o json is for all", cmd.CommandPath())
		}
		if a.json {
			return usagef("--json and -o tsv are two forms: choose one")
		}
	default:
		return usagef("-o %q: want table, json or tsv", a.form)
	}
	return checkTimes(cmd)
}

// writeTSV writes items as lines of tab-separated values below a line of names. Names
// and values are those of --json; a list or an object within an item is JSON. In a
// string a backslash, a tab, a line's end and what a terminal would obey are escaped.
func writeTSV[T any](w io.Writer, items []T) error {
	names, _, err := fieldsOf(blank[T]())
	if err != nil {
		return err
	}
	rows := make([]map[string]string, len(items))
	for i, it := range items {
		keys, row, err := fieldsOf(it)
		if err != nil {
			return err
		}
		for _, k := range keys { // those that are left out where they are empty
			if !slices.Contains(names, k) {
				names = append(names, k)
			}
		}
		rows[i] = row
	}
	var b strings.Builder
	b.WriteString(strings.Join(names, "\t") + "\n")
	for _, row := range rows {
		for i, n := range names {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(row[n])
		}
		b.WriteByte('\n')
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// blank is an item without anything, for the names.
func blank[T any]() any {
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.Pointer {
		return reflect.New(t.Elem()).Interface()
	}
	return reflect.Zero(t).Interface()
}

// fieldsOf returns the names of an object in their order, and its values as text.
func fieldsOf(v any) (names []string, values map[string]string, err error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return nil, nil, err
	}
	values = map[string]string{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, nil, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, nil, err
		}
		name := fmt.Sprint(key)
		names, values[name] = append(names, name), string(plain.JSON(raw))
		var s string
		if raw[0] == '"' && json.Unmarshal(raw, &s) == nil {
			values[name] = plain.Text(strings.ReplaceAll(s, `\`, `\\`))
		}
	}
	return names, values, nil
}
