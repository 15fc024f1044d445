// Command rdsd is the daemon for reliable datagrams between nodes, and the
// command line that talks to it.
//
// Called as rds-ping, rds-info or rds-stress it takes those tools' flags and
// prints their columns.
package main

import (
	"os"

	"github.com/rdsd/rdsd/rdsd/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
}
