// Package config is what a node can be told: the keys, where a value may come
// from (defaults, file, environment, flags), what is right for it and who may do
// what by it.
//
// Default or Load make a Config; Validate tells what is wrong with one, With takes
// over what can change while a node runs. Nothing here opens anything or knows the
// node that is configured, so a configuration can be checked anywhere.
//
// The list of keys is the struct tags of Config and its sections: keys.go reads
// them, and flags, environment, origins and the tables of docs/operations.md follow.
//
// Read config.go, keys.go and load.go first; policy.go holds who may bind, peer and
// administer.
package config
