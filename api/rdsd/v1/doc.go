// Package rdsdv1 is the local API of rdsd as protobuf and gRPC, and the one
// table that turns an RDS errno into a gRPC status and back. All but errno.go
// is generated from rdsd.proto and volume.proto (make proto).
//
// Generated types stay in node and the SDK; the protocol core has its own.
// Read rdsd.proto, volume.proto and errno.go.
package rdsdv1
