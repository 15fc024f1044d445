package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// maxConfigBytes bounds a configuration file; what is larger is a mistake.
const maxConfigBytes = 1 << 20

// LoadOptions says where a configuration comes from.
type LoadOptions struct {
	// File is read when not empty; otherwise RDSD_CONFIG of Env names it;
	// with neither there is no file.
	File string
	// Text is what File has; nil: it is read.
	Text []byte
	// Env is os.Environ() or a test's own.
	Env []string
	// Flags are the values of Flags(); those that were set count.
	Flags []*Flag
}

// Error is one wrong setting.
type Error struct {
	Where   string // "/etc/rdsd.toml:12", "RDSD_PORT", "--port", "default"
	Key     string // "rds.port"; "" when the file cannot be read at all
	Problem string
	Want    string // what would be right; may be empty
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Where)
	if e.Key != "" {
		b.WriteString(": " + e.Key)
	}
	b.WriteString(": " + e.Problem)
	if e.Want != "" {
		b.WriteString("; want " + e.Want)
	}
	return b.String()
}

// Load puts together defaults < file < RDSD_* environment < flags, and
// validates the result. Every error it returns is, or joins, *Error.
func Load(o LoadOptions) (*Config, error) {
	c := Default()
	c.origins = map[string]Origin{}
	env := map[string]string{}
	for _, e := range o.Env {
		k, v, ok := strings.Cut(e, "=")
		switch {
		case ok && strings.HasPrefix(k, "RDSD_"):
			env[k] = v
		case k == "STATE_DIRECTORY": // of a systemd unit
			c.stateDirectory, _, _ = strings.Cut(v, ":")
		}
	}
	file := o.File
	if file == "" {
		file = env["RDSD_CONFIG"]
	}
	var errs []error
	if file != "" {
		data := o.Text
		if data == nil {
			var err error
			if data, err = readConfigFile(file); err != nil {
				return nil, &Error{Where: file, Problem: err.Error(), Want: "a readable TOML file"}
			}
		}
		unreadable := false
		if errs, unreadable = c.decode(file, data); unreadable {
			return nil, errors.Join(errs...) // whatever else there is would be said of the defaults
		}
	}
	errs = append(errs, c.applyEnv(env), c.applyFlags(o.Flags))
	if err := errors.Join(errs...); err != nil {
		// What is out of range is named with what cannot be read, so that all mistakes
		// are mended at once. What could not be read is held against nothing (validator.add).
		return nil, flatten(err, c.Validate())
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// flatten joins errors that may be joined ones, into one list.
func flatten(errs ...error) error {
	var list []error
	var walk func(error)
	walk = func(err error) {
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range j.Unwrap() {
				walk(e)
			}
		} else if err != nil {
			list = append(list, err)
		}
	}
	for _, err := range errs {
		walk(err)
	}
	return errors.Join(list...)
}

func readConfigFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unwrapPath(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, unwrapPath(err)
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxConfigBytes)
	}
	return data, nil
}

// unwrapPath drops the "open /path:" that the caller says already.
func unwrapPath(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

// maxMistakes bounds how many settings of a file that cannot be read are named.
const maxMistakes = 64

// decode reads a file over the defaults, strictly. The parser stops at the first value
// of a wrong type: its line is taken out, and the rest read again, so that all are
// named. unreadable says that the file cannot be read as a whole.
func (c *Config) decode(file string, data []byte) (errs []error, unreadable bool) {
	c.file, c.unread = file, map[string]bool{}
	var head struct {
		Version *int `toml:"version"`
	}
	if err := toml.Unmarshal(data, &head); err != nil {
		_, err := c.tomlErrors(err)
		return []error{err}, true
	}
	if head.Version == nil {
		return []error{&Error{file + ":1", "version", "missing", "`version = 1` as the first line"}}, true
	}
	c.noteOrigins(data)
	errs = c.capital
	if *head.Version != Version {
		return []error{&Error{c.Origin("version").String(), "version", fmt.Sprintf("%d is not known to this rdsd", *head.Version), "1"}}, true
	}
	for lines := bytes.SplitAfter(data, []byte("\n")); len(errs) < maxMistakes; {
		d := toml.NewDecoder(bytes.NewReader(bytes.Join(lines, nil)))
		d.DisallowUnknownFields()
		err := d.Decode(c)
		if err == nil {
			break
		}
		line, told := c.tomlErrors(err)
		errs = append(errs, told)
		if e, ok := errors.AsType[*Error](told); ok && line > 0 {
			c.noteUnread(e.Key, line)
		}
		if line < 1 || line > len(lines) || len(bytes.TrimSpace(lines[line-1])) == 0 {
			break
		}
		lines[line-1] = []byte("\n")
		if toml.Unmarshal(bytes.Join(lines, nil), &map[string]any{}) != nil {
			c.noteUnreadAfter(line) // the value had more lines than one
			break
		}
		if len(errs) == maxMistakes {
			c.noteUnreadAfter(line)
		}
	}
	return errs, false
}

// noteUnread notes that the value of a key, which is without indexes, in a line could not be read.
func (c *Config) noteUnread(key string, line int) {
	for name, o := range c.origins {
		if o.Line == line && indexes.ReplaceAllString(name, "") == key {
			c.unread[name] = true
			return
		}
	}
	c.unread[key] = true // it has more lines than one, and this is not its first
}

// noteUnreadAfter notes that the reading of the file ended in a line.
func (c *Config) noteUnreadAfter(line int) {
	for name, o := range c.origins {
		if o.Line > line {
			c.unread[name] = true
		}
	}
}

// isUnread reports whether the value of a key could not be read, or that of one in the table which key names.
func (c *Config) isUnread(key string) bool {
	if key == "" {
		return false
	}
	plain := indexes.ReplaceAllString(key, "")
	if c.unread[key] || c.unread[plain] {
		return true
	}
	for name, unread := range c.unread {
		if unread && (strings.HasPrefix(name, key+".") || strings.HasPrefix(name, plain+".")) {
			return true
		}
	}
	return false
}

// goWords are what parsers say of a value in words of Go, which are none of who writes a file, and what is said instead.
var goWords = []struct {
	said  *regexp.Regexp
	plain string
}{
	{regexp.MustCompile(`cannot decode TOML (\w+) into .*`), "a TOML $1 does not fit here"},
	{regexp.MustCompile(`cannot store (an array table|a table) in an? .*`), "$1 does not fit here"},
	{regexp.MustCompile(`(?:negative )?integer value (\S+) cannot be stored in .*`), "$1 is out of range"},
	{regexp.MustCompile(`\w+ number is too large to fit in .*`), "the number is out of range"},
	{regexp.MustCompile(`ParseAddr\(("(?:[^"\\]|\\.)*")\): .*`), "$1 is not an address"},
}

// plainWords is what err says, in words of the configuration.
func plainWords(err error) string {
	text := err.Error()
	for _, w := range goWords {
		text = w.said.ReplaceAllString(text, w.plain)
	}
	return strings.TrimPrefix(text, "toml: ")
}

// tomlErrors says line, key and what would be right for each error of the parser. line
// is where a value is that ended the reading; 0: it was read to its end, or nobody knows.
func (c *Config) tomlErrors(err error) (line int, told error) {
	if missing, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var out []error
		for i := range missing.Errors {
			e := &missing.Errors[i]
			key := strings.Join(e.Key(), ".")
			out = append(out, &Error{Where: c.at(e), Key: key, Problem: "unknown key; " + suggest(key)})
		}
		return 0, errors.Join(out...)
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		key := strings.Join(e.Key(), ".")
		line, _ = e.Position()
		return line, &Error{c.at(e), key, plainWords(e), wantOf(key)}
	}
	if key, ok := c.blame(err); ok {
		at := c.Origin(key)
		return at.Line, &Error{at.String(), key, plainWords(err), wantOf(key)}
	}
	return 0, &Error{Where: c.file, Problem: plainWords(err)}
}

func (c *Config) at(e *toml.DecodeError) string {
	line, _ := e.Position()
	return fmt.Sprintf("%s:%d", c.file, line)
}

// wantOf returns the help for a key, also for one of a list of tables.
func wantOf(key string) string {
	if k := keyByName[key]; k != nil {
		return k.Want
	}
	at := strings.LastIndexByte(key, '.')
	table, _, _ := strings.Cut(key[:max(at, 0)], "[")
	return tableWant(table, key[at+1:])
}

// suggest names the known key that looks most like an unknown one.
func suggest(key string) string {
	best, bestDist := "", 1+len(key)/2
	last := lastWord(key)
	for _, name := range append(tableKeys(), keyNames()...) {
		word := lastWord(name)
		// A word that has no letter in common is no misspelling, however short it is.
		if d := distance(key, name); d < bestDist && distance(last, word) < max(len(last), len(word)) {
			best, bestDist = name, d
		}
	}
	for _, name := range keyNames() { // right name, wrong section
		if strings.HasSuffix(name, "."+last) {
			best = name
			break
		}
	}
	if best == "" {
		return "docs/operations.md lists them"
	}
	return "did you mean " + best + "?"
}

func lastWord(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

func keyNames() []string {
	out := make([]string, len(keys))
	for i := range keys {
		out[i] = keys[i].Name
	}
	return out
}

// distance is Levenshtein's, over bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := prev
			if a[i] != b[j] {
				cost++
			}
			prev = row[j+1]
			row[j+1] = min(cost, row[j]+1, prev+1)
		}
	}
	return row[len(b)]
}

// applyEnv takes the RDSD_ variables that name a key; an empty value counts as set.
func (c *Config) applyEnv(env map[string]string) error {
	var errs []error
	if c.unread == nil {
		c.unread = map[string]bool{}
	}
	known := map[string]bool{"RDSD_CONFIG": true}
	for i := range keys {
		k := &keys[i]
		known[k.Env] = true
		v, ok := env[k.Env]
		if !ok || k.Env == "" {
			continue
		}
		values := []string{v}
		if k.List {
			values = strings.FieldsFunc(v, func(r rune) bool { return r == ',' })
		}
		c.origins[k.Name] = Origin{Kind: "environment", Name: k.Env}
		err := k.set(c, values)
		if c.unread[k.Name] = err != nil; err != nil {
			errs = append(errs, &Error{k.Env, k.Name, plainWords(err), k.Want})
		}
	}
	for name := range env {
		if !known[name] {
			c.notes = append(c.notes, fmt.Sprintf("%s names no configuration key and is ignored", name))
		}
	}
	sort.Strings(c.notes)
	return errors.Join(errs...)
}

func (c *Config) applyFlags(flags []*Flag) error {
	var errs []error
	for _, f := range flags {
		if len(f.values) == 0 {
			continue
		}
		c.origins[f.key.Name] = Origin{Kind: "flag", Name: "--" + f.key.Flag}
		err := f.key.set(c, f.values)
		if c.unread[f.key.Name] = err != nil; err != nil {
			errs = append(errs, &Error{"--" + f.key.Flag, f.key.Name, plainWords(err), f.key.Want})
		}
	}
	return errors.Join(errs...)
}
