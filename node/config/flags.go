package config

// Flag is one command line flag of `rdsd serve`. It implements the Value
// interfaces of both the standard flag package and pflag.
type Flag struct {
	key    *Key
	values []string
}

// Flags returns a fresh set, to be registered with a command and then handed
// to Load.
func Flags() []*Flag {
	var out []*Flag
	for i := range keys {
		if keys[i].Flag != "" {
			out = append(out, &Flag{key: &keys[i]})
		}
	}
	return out
}

// Name is the flag's name without dashes.
func (f *Flag) Name() string { return f.key.Flag }

// Usage is its help text, with the default and the variable that does the same.
func (f *Flag) Usage() string { return f.key.Usage + " (" + f.key.Env + ")" }

// String is the value set, or the default.
func (f *Flag) String() string {
	if f == nil || f.key == nil {
		return ""
	}
	if len(f.values) > 0 {
		return f.values[len(f.values)-1]
	}
	return f.key.Value(Default())
}

// Set records a value. What is wrong with it Load says.
func (f *Flag) Set(s string) error {
	f.values = append(f.values, s)
	return nil
}

// Type is "bool", "strings" or "string" (pflag shows it).
func (f *Flag) Type() string {
	switch {
	case f.key.isBool:
		return "bool"
	case f.key.List:
		return "strings"
	}
	return "string"
}

// IsBoolFlag lets the standard package take the flag without a value.
func (f *Flag) IsBoolFlag() bool { return f.key.isBool }
