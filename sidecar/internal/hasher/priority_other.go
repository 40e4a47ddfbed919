//go:build !linux

package hasher

import "os/exec"

func detach(*exec.Cmd) {}

// leave does nothing: only Linux's priorities are supported.
func leave(Priority) {}

func (h *process) pause(bool) {}
