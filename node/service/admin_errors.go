package service

import (
	"context"
	"log/slog"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// LoggedError is a warning or an error of the log that came Count times.
type LoggedError struct {
	Level            slog.Level
	Message, Subject string
	Why, Peer        string // may be empty
	First, Last      time.Time
	Count            uint64
}

// ListErrors brings the distinct warnings and errors of the log.
func (a *adminServer) ListErrors(context.Context, *rdsdv1.ListErrorsRequest) (*rdsdv1.ListErrorsResponse, error) {
	list, forgotten := a.front.deps.Errors()
	var out []*rdsdv1.LoggedError
	now := time.Now()
	for i := range list {
		e := &list[i]
		m := &rdsdv1.LoggedError{}
		m.SetWarning(e.Level < slog.LevelError)
		m.SetMessage(text(e.Message))
		m.SetSubject(text(e.Subject))
		m.SetError(text(e.Why))
		m.SetFirstUnixNs(byClock(now, e.First).UnixNano())
		m.SetLastUnixNs(byClock(now, e.Last).UnixNano())
		m.SetCount(e.Count)
		out = append(out, m)
	}
	resp := &rdsdv1.ListErrorsResponse{}
	resp.SetError(out)
	resp.SetForgotten(forgotten)
	return resp, nil
}

// byClock is then by the time of day that now is: whoever reads it makes of it how long ago that was, and
// the clock may have been set since.
func byClock(now, then time.Time) time.Time { return now.Add(-now.Sub(then)) }
