package service

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/rdsd/rdsd/node/health"
	"github.com/rdsd/rdsd/node/volume"
)

// TestNamesThatAreNoText: whatever other nodes and directories call what they have, what is
// told of it can be sent.
func TestNamesThatAreNoText(t *testing.T) {
	var (
		export  volume.ExportInfo
		mapping volume.MappingInfo
		session volume.SessionInfo
		path    volume.PathInfo
		event   volume.Event
		problem health.Problem
	)
	for _, v := range []any{&export, &mapping, &session, &path, &event, &problem} {
		noText(reflect.ValueOf(v).Elem())
	}
	event.Err = errors.New("\xff")
	now := time.Now()
	for _, m := range []proto.Message{exportPB(&export, now), mappingPB(&mapping, now), volumeSessionPB(&session, now), volumePathPB(&path, now), volumeEventPB(&event), problemPB(&problem)} {
		name := m.ProtoReflect().Descriptor().Name()
		if _, err := proto.Marshal(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := protojson.Marshal(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := volumeSessionPB(&session, now).GetName(); got != "a?" {
		t.Errorf("the session is called %q", got)
	}
}

// noText sets every string that is anywhere in v. Words that the API has enums for become
// unknown ones; policies are names of this node's own.
func noText(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("a\xff")
	case reflect.Slice:
		if v.CanSet() && v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			noText(v.Index(0))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Policy" && f.Name != "Op" {
				noText(v.Field(i))
			}
		}
	}
}
