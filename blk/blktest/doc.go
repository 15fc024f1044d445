// Package blktest is the suite every blk.Device passes: what is read is what
// was written, against a model; requests that are wrong fail and do nothing;
// each request completes once; nothing runs after Close.
//
// Read suite.go.
package blktest
