// Package cong holds RDS congestion maps: 65,536 bits, one for each port of an
// address, as net/rds/cong.c keeps them. The rds package keeps one Map for
// its own address and one for each peer. Objects have no lock; their owner's
// lock guards them.
package cong
