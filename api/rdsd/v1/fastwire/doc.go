// Package fastwire has the pieces from which the three hot messages of rdsd.proto are laid
// out and read by hand: their tags, packed numbers and endpoints. The daemon (node/client)
// and the SDK (sdk/go) are the two ends; what each puts together differs, because one sends
// what the other receives, and the pieces are the same. docs/adr/0014-protobuf-by-hand.md
// says why this is not left to generated code.
//
// The bytes are those of the generated code, and the tests of both ends compare them. There
// is no state, and nothing here allocates but what it appends to.
//
// Read tags.go first.
package fastwire
