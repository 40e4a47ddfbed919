//go:build !linux

package hasher

import "os/exec"

func detach(*exec.Cmd) {}

// leave does nothing: only Linux's priorities are known here.
func leave(Priority) {}

func (h *process) pause(bool) {}
