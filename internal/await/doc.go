// Package await is for tests that wait for something another goroutine or process does.
package await
