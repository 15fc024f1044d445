// Package ahead is for tests of events that have a time limit: within so many seconds a
// disk answers, a path is connected again, a kernel gives a connection up. Beside twenty
// others that want two processors they would measure the others.
package ahead
