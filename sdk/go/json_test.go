package rdsd

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// unnamed is a key that no tag has named.
var unnamed = regexp.MustCompile(`"[A-Z]\w*":`)

// TestJSONOfAnswers: what the calls bring goes through JSON and comes back as it was.
func TestJSONOfAnswers(t *testing.T) {
	e, m, s, p := &rdsdv1.VolumeExport{}, &rdsdv1.VolumeMapping{}, &rdsdv1.VolumeSession{}, &rdsdv1.VolumePath{}
	i, ev := &rdsdv1.VolumeFinding{}, &rdsdv1.VolumeEvent{}
	for _, x := range []proto.Message{e, m, s, p, i, ev} {
		fill(x.ProtoReflect())
	}
	e.SetAllowAddress([]string{"10.0.0.0/8"})
	e.GetUser()[0].SetPeer([]byte{10, 0, 0, 1})
	ev.SetErrno(0)
	ev.SetError("") // JSON has the words alone
	event := eventFromProto(ev)
	event.Time = event.Time.UTC() // JSON has the moment, and a zone by its offset
	values := []any{*exportFromProto(e), *mappingFromProto(m), sessionFromProto(s), pathFromProto(p), findingFromProto(i), *event,
		RemoteVolume{"n", "v", 1, *infoFromProto(e.GetInfo())}, CongestionNotice{time.Unix(0, 2).UTC(), hereEnd, true, true}}
	for _, c := range adminCalls {
		if c.want != nil {
			values = append(values, c.want)
		}
	}
	for _, v := range values {
		text, err := json.Marshal(v)
		back := reflect.New(reflect.TypeOf(v))
		if err == nil {
			err = json.Unmarshal(text, back.Interface())
		}
		if err != nil || !reflect.DeepEqual(back.Elem().Interface(), v) {
			t.Errorf("%T: %s (%v) comes back as\n%+v, want\n%+v", v, text, err, back.Elem(), v)
		}
		if key := unnamed.Find(text); key != nil {
			t.Errorf("%T: %s has no name of its own in JSON", v, key)
		}
	}
}

// TestJSONOfNothing: a list that is empty is [], not null, so that a script need not
// ask whether there is one.
func TestJSONOfNothing(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{statusFromProto(&rdsdv1.Status{}), `"local_addresses":[],"rds_port":0,"peers":0,"peers_up":0,"sockets":0,"memory_used_bytes":0,"memory_budget_bytes":0,"config_file":"","budgets":[],"http_address":"","healthy":false,"severity":"","problems":[]`},
		{&ErrorLog{Errors: all(nil, loggedFromProto)}, `"errors":[]`},
		{peerFromProto(&rdsdv1.Peer{}), `"last_error":"","paths":[]`},
		{congestedFromProto(&rdsdv1.CongestedPort{}), `"culprits":[]`},
		{exportFromProto(&rdsdv1.VolumeExport{}), `"allow_addresses":[],"allow_sessions":[],"persist":false,"origin":"","info":null,"users":[],"operations":[]`},
		{mappingFromProto(&rdsdv1.VolumeMapping{}), `"paths":[]`},
		{sessionFromProto(&rdsdv1.VolumeSession{}), `"volumes":[]`},
		{eventFromProto(&rdsdv1.VolumeEvent{}), `"kind":"","text":""}`},
	} {
		text, err := json.Marshal(c.v)
		if err != nil || !bytes.Contains(text, []byte(c.want)) {
			t.Errorf("%T: %s (%v), want %s in it", c.v, text, err, c.want)
		}
	}
}

// TestJSONOfComputed: what no field holds is in the JSON nevertheless.
func TestJSONOfComputed(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{VolumeOp{Submitted: 7, Completed: 4, Time: 12}, `"in_flight":3,"mean_ns":3}`},
		{[]VolumeOp{{}}, `"in_flight":0,"mean_ns":0}]`},
		{VolumeEvent{Err: rdserr.With(rdserr.ErrIO, "medium")}, `"error":"medium"}`},
		{&VolumeEvent{Err: syscall.EIO}, `"error":"input/output error"}`},
	} {
		text, err := json.Marshal(c.v)
		if err != nil || !bytes.HasSuffix(text, []byte(c.want)) {
			t.Errorf("%+v: %s (%v), want %s at the end", c.v, text, err, c.want)
		}
	}
}
