package wire

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

func permissions(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "permission." + strconv.Itoa(i)
	}
	return names
}

func TestStateRoundTrip(t *testing.T) {
	tests := []struct {
		name  string
		state State
	}{
		{"sample", testState},
		{"zero but for the epoch", State{Epoch: 1, Permissions: []string{}}},
		{"every number at its end", State{
			Epoch: math.MaxUint64, InStepMS: math.MaxInt64, HeartbeatMS: math.MinInt64,
			ObjectBuckets: math.MaxUint32, VerdictBuckets: math.MaxUint32 - 1, BodySlots: math.MaxUint32 - 2,
			Permissions: []string{},
		}},
		{"in step before 1970", State{Epoch: 1, InStepMS: -1, Permissions: []string{}}},
		{"devices complete", State{Epoch: 1, DevicesComplete: true, Permissions: []string{}}},
		{"one permission", State{Epoch: 1, Permissions: permissions(1)}},
		{"all permissions", State{Epoch: 1, Permissions: permissions(limits.MaxPermissions)}},
		{"the longest permission",
			State{Epoch: 1, Permissions: []string{strings.Repeat("p", limits.MaxPermissionName), "q"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseState(AppendState(nil, &tt.state))
			if err != nil || !reflect.DeepEqual(got, tt.state) {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.state)
			}
		})
	}
}

// TestStateOwnsItsStrings checks that a state outlives the bytes it was read from.
func TestStateOwnsItsStrings(t *testing.T) {
	rec := AppendState(nil, &testState)
	got, err := ParseState(rec)
	clear(rec)
	if err != nil || !reflect.DeepEqual(got, testState) {
		t.Errorf("got %+v, %v, want %+v", got, err, testState)
	}
}

func TestParseStateMalformed(t *testing.T) {
	good := AppendState(nil, &testState)
	tests := []struct {
		name string
		rec  []byte
	}{
		{"epoch 0", edited(good, set64(8, 0))},
		{"cut in the heartbeat", edited(good, cut(71))},
		{"cut after the flags", edited(good, cut(79))},
		{"a flag that this layout doesn't know", edited(good, set8(72, 2))},
		{"one permission more than the most",
			AppendState(nil, &State{Epoch: 1, Permissions: permissions(limits.MaxPermissions + 1)})},
		{"the greatest count", edited(good, set16(2, math.MaxUint16))},
		{"a name more than are there", edited(good, set16(2, 3))},
		{"first name longer than all that is left", edited(good, set8(80, 255))},
		{"last name a byte longer than is left", edited(good, set8(92, byte(len("telemetry.write")+1)))},
		{"cut in the last name", edited(good, cut(len(good)-1))},
		{"cut before the last length", edited(good, cut(92))},
		{"no names", edited(good, cut(80))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseState(tt.rec); !errors.Is(err, ErrMalformed) {
				t.Errorf("got %+v, %v, want %v", got, err, ErrMalformed)
			}
			sameBeyond(t, tt.rec, readState)
		})
	}
}
