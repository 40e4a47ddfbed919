package follow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

func TestProof(t *testing.T) {
	var keys contract.Keys
	ours, other := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for _, test := range []struct {
		name   string
		seq    string // of the server; "": none
		stored contract.Link
		write  contract.Link
		want   string // part of the error
	}{
		{"nothing was applied", "", contract.Link{}, contract.Link{}, ""},
		{"the same", "7", contract.Link{Seq: 7, Digest: ours}, contract.Link{Seq: 7, Digest: ours}, ""},
		{"ahead", "9", contract.Link{Seq: 7, Digest: ours}, contract.Link{Seq: 7, Digest: ours}, ""},
		{"far ahead", "65600", contract.Link{Seq: 65543, Digest: other}, contract.Link{Seq: 7, Digest: ours}, ""},
		{"empty", "", contract.Link{}, contract.Link{Seq: 7}, "behind write 7"},
		{"behind", "6", contract.Link{}, contract.Link{Seq: 7, Digest: ours}, "behind write 7"},
		{"another history", "9", contract.Link{Seq: 7, Digest: other}, contract.Link{Seq: 7, Digest: ours},
			"another write 7"},
		{"an unknown digest", "9", contract.Link{Seq: 7, Digest: other}, contract.Link{Seq: 7}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := miniredis.RunT(t)
			if test.seq != "" {
				m.Set(keys.SeqKey(), test.seq)
			}
			if test.stored.Seq != 0 {
				m.HSet(keys.ChainKey(), contract.ChainField(test.stored.Seq), test.stored.String())
			}
			client := redis.NewClient(&redis.Options{Addr: m.Addr()})
			defer client.Close()
			pipe := client.Pipeline()
			proof := AskProof(t.Context(), pipe, keys, test.write)
			if err := Unsent(pipe.Exec(t.Context())); err != nil {
				t.Fatal(err)
			}
			if err := proof.Err(); (err != nil) != (test.want != "") || !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestAppliedDuringResync: individual reads during a full resync must be from the server that the resync reads.
func TestAppliedDuringResync(t *testing.T) {
	s, _, _ := inOrder(t, contract.ObjectMember("/a"))
	during := contract.Link{}
	s.Objects = &flood{arrive: func() { during = *s.applied.Load() }}
	if err := s.catchUp(t.Context(), catchUpConnected); err != nil || during.Seq != s.seq || s.seq == 0 {
		t.Errorf("got %v, and %v as the last write during a resync up to %d", err, during, s.seq)
	}
}

// TestAppliedAfterASnapshot: as TestAppliedDuringResync, when a catch-up continues from a snapshot's position.
func TestAppliedAfterASnapshot(t *testing.T) {
	s, _, _ := inOrder(t, contract.ObjectMember("/a"), contract.ObjectMember("/b"))
	during := contract.Link{}
	s.Objects = &flood{arrive: func() {
		s.setLast(1, "") // as after a page of the log
		during = *s.applied.Load()
	}}
	s.dataEpoch, s.synced, s.fromSnapshot = strings.Repeat("a", 32), true, new(snapshotReads)
	s.historyAt = time.Now()
	s.setLast(1, "")
	if err := s.catchUp(t.Context(), catchUpConnected); err != nil || during.Seq != 2 || s.catchups != 1 {
		t.Errorf("got %v, and %v as the last write during a catch-up to 2", err, during)
	}
}
