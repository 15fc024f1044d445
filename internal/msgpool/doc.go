// Package msgpool is a pool of buffers for messages of gRPC (mem.BufferPool). It does not
// clear the buffers it hands out, as grpc's own do, which costs as much as the copy that
// follows; and it has no gap between 32 KiB and 1 MiB, where grpc's default takes 1 MiB for
// a message of 33 KiB. Its users write a buffer before reading it, up to its length: the
// transport of grpc-go does (readDataFrame fills it or gives it back), and so do the codecs
// of packages node and sdk/go.
package msgpool
