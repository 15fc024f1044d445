// Package cli is the command line of rdsd: one cobra command a file, thin
// over sdk/go.
//
// Main picks the command from argv[0] (rds-ping, rds-info and rds-stress go to
// package rdstools) or from the arguments, runs it, explains its error and
// returns the exit code. Tables for people and JSON for programs come from the
// same structs, which are those of sdk/go. Nothing here keeps state; every goroutine
// a command starts ends with its context.
//
// Read first: cli.go, exit.go, output.go.
package cli
