// Package tolltest is a client's descriptor with very many watchers, for tests.
package tolltest
