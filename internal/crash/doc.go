// Package crash kills this process at named points, to show that it may die
// there. Every point lies between two stores to memory that outlives the
// process. RDSD_CRASH_POINT=name[:n] in the environment at start arms one: the
// n-th passage (the first without n) is SIGKILL. Otherwise a point costs one
// load and a branch that is never taken.
package crash
