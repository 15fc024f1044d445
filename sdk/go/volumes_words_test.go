package rdsd

import (
	"errors"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// A word of a mapping that is none of the API's is an error, and never left out.
func TestWrongWordsOfMappings(t *testing.T) {
	for what, s := range map[string]MapSpec{
		"attach":   {Attach: "tape"},
		"access":   {Access: "some"},
		"on loss":  {OnLoss: "cry"},
		"unfenced": {Unfenced: "soon"},
	} {
		if m, err := mapToProto(&s); m != nil || !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, m, err)
		}
	}
	if m, err := mapToProto(&MapSpec{}); m == nil || err != nil {
		t.Errorf("without words: %v", err)
	}
}
