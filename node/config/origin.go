package config

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Origin says where the value of a key came from.
type Origin struct {
	Kind string // "default", "file", "environment", "flag"; "start": the file as the start read it, which says something else since
	Name string // file, variable or flag
	Line int    // in the file
}

// String is what error messages begin with.
func (o Origin) String() string {
	switch o.Kind {
	case "file":
		return fmt.Sprintf("%s:%d", o.Name, o.Line)
	case "start":
		return fmt.Sprintf("%s:%d at the start", o.Name, o.Line)
	case "environment", "flag":
		return o.Name
	}
	return "default"
}

// words is what an error says of the origin when the start failed because of a value.
func (o Origin) words() string {
	switch o.Kind {
	case "file":
		return fmt.Sprintf("is set in %s:%d", o.Name, o.Line)
	case "start":
		return fmt.Sprintf("was set in %s:%d at the start", o.Name, o.Line)
	case "environment":
		return "is set by the environment variable " + o.Name
	case "flag":
		return "is set by the flag " + o.Name
	}
	return "is the default"
}

// Failed is an error in what the value of a key had the node do: it tells where the
// value came from, which need not be where its reader looks.
func (c *Config) Failed(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%s %s)", err, key, c.Origin(key).words())
}

// Origin returns where a key's value comes from. Keys are "rds.port",
// "ports[0].range" and so on.
func (c *Config) Origin(key string) Origin {
	if o, ok := c.origins[key]; ok {
		return o
	}
	if at := strings.LastIndexByte(key, ']'); at > 0 { // what is missing there
		if o, ok := c.origins[key[:at+1]]; ok {
			return o
		}
	}
	return Origin{Kind: "default"}
}

// noteOrigins records the line of every key of a file. The decoder does not
// give positions of values it accepts, so the document is walked once more; a
// syntax error ends the walk and is the decoder's to report.
func (c *Config) noteOrigins(data []byte) {
	p := unstable.Parser{}
	p.Reset(data)
	table := ""
	count := map[string]int{}
	for p.NextExpression() {
		e := p.Expression()
		name, line := nodeKey(&p, e)
		own := name
		switch e.Kind {
		case unstable.Table:
			table = name
			c.origins[table] = Origin{"file", c.file, line}
		case unstable.ArrayTable:
			table = fmt.Sprintf("%s[%d]", name, count[name])
			count[name]++
			c.origins[table] = Origin{"file", c.file, line}
		case unstable.KeyValue:
			if table != "" {
				name = table + "." + name
			}
			c.noteSpelling(name, own, line)
			c.noteValue(&p, name, line, e.Value())
			continue
		}
		c.noteSpelling(name, own, line)
	}
}

// noteSpelling refuses a key that is known but for capital letters; own is the part of it that stands in that line. TOML
// tells them apart, and the decoder does not: it would take Deny after deny, or [[Peers]] after [[peers]], in place of the
// first without a word, and nobody could say where the value came from.
func (c *Config) noteSpelling(name, own string, line int) {
	name = indexes.ReplaceAllString(name, "")
	if small := strings.ToLower(name); strings.ToLower(own) != own && isKnown(small) {
		c.capital = append(c.capital, &Error{fmt.Sprintf("%s:%d", c.file, line), name, "unknown key; did you mean " + small + "?", ""})
	}
}

// indexes are those in the name of a key of a list of tables.
var indexes = regexp.MustCompile(`\[\d+\]`)

// noteValue records a value and, inside inline tables and arrays of them, what they hold.
func (c *Config) noteValue(p *unstable.Parser, name string, line int, v *unstable.Node) {
	c.origins[name] = Origin{"file", c.file, line}
	c.noteNumber(name, v)
	switch v.Kind {
	case unstable.InlineTable:
		for it := v.Children(); it.Next(); {
			key, at := nodeKey(p, it.Node())
			c.noteSpelling(name+"."+key, key, at)
			c.noteValue(p, name+"."+key, at, it.Node().Value())
		}
	case unstable.Array:
		i := 0
		for it := v.Children(); it.Next(); i++ {
			item := fmt.Sprintf("%s[%d]", name, i)
			if it.Node().Kind == unstable.InlineTable {
				c.noteValue(p, item, line, it.Node())
			}
			c.noteNumber(item, it.Node())
		}
	}
}

// noteNumber records the text of a number or boolean, of an item of a list too.
func (c *Config) noteNumber(name string, v *unstable.Node) {
	switch v.Kind {
	case unstable.Integer, unstable.Float, unstable.Bool:
		if c.numbers == nil {
			c.numbers = map[string]string{}
		}
		c.numbers[name] = string(v.Data)
	}
}

func nodeKey(p *unstable.Parser, n *unstable.Node) (string, int) {
	var parts []string
	line := 0
	for it := n.Key(); it.Next(); {
		k := it.Node()
		if line == 0 {
			line = p.Shape(k.Raw).Start.Line
		}
		parts = append(parts, string(k.Data))
	}
	return strings.Join(parts, "."), line
}

// element is the index of an item of a list of values.
var element = regexp.MustCompile(`\[\d+\]$`)

// blame finds the number or boolean an error without position is about: the
// decoder gives none when a text type refuses one of them. A number that is the
// same as the refused one, but of a key that takes numbers, is not it.
func (c *Config) blame(err error) (key string, ok bool) {
	found := ""
	for name, text := range c.numbers {
		if !strings.Contains(err.Error(), strconv.Quote(text)) || !texts[indexes.ReplaceAllString(name, "")] {
			continue
		}
		of := element.ReplaceAllString(name, "")
		if !ok || c.origins[of].Line < c.origins[key].Line {
			found, key, ok = name, of, true
		}
	}
	delete(c.numbers, found) // the next one is another's fault
	return key, ok
}

// Dump writes the effective configuration as a TOML file that loads again.
func (c *Config) Dump(w io.Writer) error {
	return c.dump(w, func(string) string { return "" })
}

// DumpOrigins writes it with a comment on each line that says where its value came from.
func (c *Config) DumpOrigins(w io.Writer) error {
	return c.dump(w, func(key string) string { return "  # " + c.Origin(key).String() })
}

func (c *Config) dump(w io.Writer, comment func(key string) string) error {
	var b strings.Builder
	section := ""
	for i := range keys {
		k := &keys[i]
		if s, _, ok := strings.Cut(k.Name, "."); ok && s != section {
			section = s
			fmt.Fprintf(&b, "\n[%s]\n", s)
		}
		text, err := toml.Marshal(map[string]any{k.Name[strings.LastIndexByte(k.Name, '.')+1:]: k.raw(c)})
		if err != nil {
			return err
		}
		b.WriteString(strings.TrimSuffix(string(text), "\n"))
		b.WriteString(comment(k.Name) + "\n")
	}
	text, err := toml.Marshal(struct {
		Ports []PortGrant `toml:"ports,omitempty"`
		Peers []PeerRule  `toml:"peers,omitempty"`
	}{c.Ports, c.Peers})
	if err != nil {
		return err
	}
	if len(text) > 0 {
		b.WriteString("\n" + string(text))
	}
	for i := range c.Volumes.Exports {
		if err := dumpTable(&b, "volumes.exports", &c.Volumes.Exports[i]); err != nil {
			return err
		}
	}
	for i := range c.Volumes.Roots {
		if err := dumpTable(&b, "volumes.roots", &c.Volumes.Roots[i]); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// dumpTable writes one table of a list; the section has been opened before.
func dumpTable(b *strings.Builder, name string, table any) error {
	text, err := toml.Marshal(table)
	fmt.Fprintf(b, "\n[[%s]]\n%s", name, text)
	return err
}
