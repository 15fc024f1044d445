// Package doctable is for tests that hold the tables of a document to the code that they
// are of: a table stands between two marks, and with -update the test writes it.
//
//	<!-- NAME: begin; written by COMMAND -->
//	| ... |
//	<!-- NAME: end -->
package doctable
