// Package credentialtest has a memory for tests of verifications.
package credentialtest

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// Memory stores neither verdicts nor devices.
type Memory struct{}

// Memory implements the interface of the package under test.
func (Memory) PutVerdict(string, string, wire.Verdict, bool)     {}
func (Memory) PutSession(string, string, wire.Verdict)           {}
func (Memory) PutAnswer(string, string, wire.Verdict, time.Time) {}
func (Memory) DropVerdicts(string)                               {}
func (Memory) PutDevice(string, bool) error                      { return nil }
func (Memory) DropDevice(string)                                 {}
func (Memory) SetDevicesComplete()                               {}
