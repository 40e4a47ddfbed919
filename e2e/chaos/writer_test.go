package chaos

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

func TestOutcomeOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want Outcome
	}{
		{"acknowledged", nil, Acked},
		{"refused by a full Redis", fmt.Errorf("put device: %w", publish.ErrFull), Failed},
		{"no connection", fmt.Errorf("put: %w", &net.OpError{Op: "dial", Err: errors.New("refused")}), Failed},
		{"no answer", fmt.Errorf("put: %w", &net.OpError{Op: "read", Err: errors.New("reset")}), Unknown},
		{"another error", errors.New("LOADING"), Unknown},
	} {
		if got := outcomeOf(tt.err); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRegistered(t *testing.T) {
	const put, del = Put, Delete
	for _, tt := range []struct {
		name     string
		kinds    []Kind
		outcomes []Outcome
		want     bool
	}{
		{"never written", nil, nil, false},
		{"put", []Kind{put}, []Outcome{Acked}, true},
		{"put, and one refused", []Kind{put, put}, []Outcome{Acked, Failed}, true},
		{"perhaps put", []Kind{put}, []Outcome{Unknown}, false},
		{"lost, and one refused", []Kind{put, put}, []Outcome{Unknown, Failed}, false},
		{"deleted", []Kind{put, del}, []Outcome{Acked, Acked}, false},
	} {
		h := &history{}
		for i, kind := range tt.kinds {
			h.endWrite(h.beginWrite(kind, 0, 0), tt.outcomes[i], 1)
		}
		if got := h.wasRegistered(h.beginWrite(del, 2, 0)); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}
