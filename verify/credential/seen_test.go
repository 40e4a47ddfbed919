package credential_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// notes collects a Verifier's reports.
type notes struct{ all []string }

func (n *notes) Allowed(device string, old bool) {
	n.all = append(n.all, fmt.Sprint("allowed ", device, " old=", old))
}
func (n *notes) Failed(device, from string) {
	n.all = append(n.all, fmt.Sprint("failed ", device, " from ", from))
}

// TestSeen: every allow of a device, by any way, is reported, and every wrong secret of a registered device with its
// address; nothing else is.
func TestSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &notes{}
		c := pinned
		c.Seen = seen
		f := start(c)
		before := device("d", 1, "old")
		f.Apply(before)
		f.Apply(rotated(before, "new"))
		f.Apply(contract.Credential{ID: "revoked", Version: 1, Disabled: true, Revoked: true})
		for _, step := range []struct {
			id, secret, from string
			reason           string
			want             string // "": nothing
		}{
			{"d", "old", "", "bcrypt", "allowed d old=true"},
			{"d", "old", "", "pin", "allowed d old=true"},
			{"d", "wrong", "192.0.2.1", "bcrypt", "failed d from 192.0.2.1"},
			{"d", "wrong", "192.0.2.2", "refuted", "failed d from 192.0.2.2"},
			{"d", "new", "", "bcrypt", "allowed d old=false"},
			{"d", "other", "", "resolved", "failed d from "},
			{"nobody", "s", "192.0.2.1", "unknown", ""},
			{"revoked", "s", "192.0.2.1", "revoked", ""},
			{"d", "", "192.0.2.1", "malformed", ""},
		} {
			seen.all = nil
			r := f.Verifier.Verify(t.Context(), step.id, step.secret, step.from)
			if string(r.Reason) != step.reason || step.want != "" && !slices.Equal(seen.all, []string{step.want}) ||
				step.want == "" && seen.all != nil {
				t.Errorf("%+v: got %s, %q", step, r.Reason, seen.all)
			}
		}
		token := f.session(t, "d", "old")
		seen.all = nil
		if f.expectSession(t, "d", token, wire.Allow, "session"); !slices.Equal(seen.all, []string{"allowed d old=true"}) {
			t.Errorf("a token: %q", seen.all)
		}
		seen.all = nil
		if f.expectSession(t, "d", "x"+token[1:], wire.Deny, "session"); seen.all != nil {
			t.Errorf("a token of no secret: %q", seen.all)
		}
	})
}
