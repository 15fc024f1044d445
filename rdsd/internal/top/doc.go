// Package top is `rdsd top`: peers, sockets, congestion, volumes and problems of a
// daemon, shown anew each interval, sorted, filtered, and one by one.
//
// A Source brings Shots. Tables make rows of a shot and of the one before, for rates;
// Screen puts them on so many columns and lines: both are pure. Run shows screens in a
// terminal with bubbletea, Print as plain text.
//
// One goroutine at a time asks the source, and ends with the program's context; the
// rest is bubbletea's own loop. What clients and peers have named is escaped when rows
// are made (package plain).
//
// Read first: tables.go, screen.go, model.go.
package top
