//go:build !linux

package hasher

import "os/exec"

func detachProcess(*exec.Cmd) {}

// lowerPriority does nothing: only Linux's priorities are supported.
func lowerPriority(Priority) {}

func (h *process) setPaused(bool) {}
