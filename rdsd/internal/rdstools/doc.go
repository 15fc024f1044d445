// Package rdstools is rds-ping, rds-info and rds-stress over rdsd: the flags,
// the columns and, for rds-stress, the control protocol of rds-tools 2.0.7, so
// that scripts go on working and a real rds-stress on a kernel peer can be the
// other end.
//
// The daemon is found as everywhere (RDSD_SOCKET, or --socket, the one flag the
// old tools do not have).
//
// Read first: rdstools.go, stress.go, stresswire.go.
package rdstools
