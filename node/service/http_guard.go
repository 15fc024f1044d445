package service

import (
	"net/http"

	"github.com/rdsd/rdsd/internal/guard"
)

// guardPage contains panics of requests to the page.
func guardPage(g *guard.Guard, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler {
				panic(p) // how a handler ends a connection
			}
			http.Error(w, g.Caught(guard.Page, p).Error(), http.StatusInternalServerError)
		}()
		guard.Point("page")
		h.ServeHTTP(w, r)
	})
}
