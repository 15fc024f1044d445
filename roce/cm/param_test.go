package cm

import (
	"errors"
	"testing"
)

// TestParamLimits: what a side says of its queue pair may be all that its fields hold, and
// nothing beside.
func TestParamLimits(t *testing.T) {
	const private = 8
	most := Param{QPN: maxQPN, RecvPSN: maxQPN, Retry: maxRep, RNRRetry: maxRep, Ack: maxCode, Private: make([]byte, private)}
	for name, p := range map[string]Param{"the least": {QPN: 2}, "the most": most} {
		if err := p.check(private); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, beyond := range map[string]func(*Param){
		"queue pair 1":          func(p *Param) { p.QPN = 1 },
		"queue pair of 25 bits": func(p *Param) { p.QPN++ },
		"packet of 25 bits":     func(p *Param) { p.RecvPSN++ },
		"retry":                 func(p *Param) { p.Retry++ },
		"RNR retry":             func(p *Param) { p.RNRRetry++ },
		"time":                  func(p *Param) { p.Ack++ },
		"private data":          func(p *Param) { p.Private = make([]byte, private+1) },
	} {
		p := most
		beyond(&p)
		if err := p.check(private); !errors.Is(err, ErrParam) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
