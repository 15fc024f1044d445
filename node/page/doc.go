// Package page is what people see of a node: a page, the JSON that it is made of, which
// curl can read as well (docs/api.md), and the hour of congestion behind it.
//
// A Page answers HTTP requests that only read. It is given the services of the API and
// calls them in the name of whoever asks, so that it shows what they show and refuses
// what they refuse. What several look at is made once: a view is kept for a moment, and
// a stream of events gets the newest views as they change, at most so often. When nobody
// looks nothing is made.
//
// Goroutines: one makes views while there are streams (events.go); the keeper of the hour
// follows congestion as long as the node runs (keeper.go). Locks: that of the streams,
// that of each view, that of the hour; none is held together with another, but a view's
// while it is made.
//
// The assets are plain files: no step builds them. Read page.go first, then view.go,
// events.go and assets/app.js.
package page
