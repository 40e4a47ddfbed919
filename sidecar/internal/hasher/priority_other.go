//go:build !linux

package hasher

import "os/exec"

func detach(*exec.Cmd) {}

// beNice does nothing: only Linux's priorities are known here.
func beNice() {}
