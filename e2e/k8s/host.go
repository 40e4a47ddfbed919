//go:build linux

package k8s

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// sysctls are the settings of the kernel that kubelet changes and that no namespace holds.
var sysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// keepSysctls reads them, to be restored.
func keepSysctls() (restore func() error, err error) {
	kept := map[string][]byte{}
	for _, name := range sysctls {
		value, err := os.ReadFile("/proc/sys/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		kept[name] = value
	}
	return func() error {
		var errs []error
		for name, value := range kept {
			if now, err := os.ReadFile("/proc/sys/" + name); err == nil && string(now) == string(value) {
				continue
			}
			errs = append(errs, os.WriteFile("/proc/sys/"+name, value, 0))
		}
		return errors.Join(errs...)
	}, nil
}

// removeCgroups removes what kubelet has made. A cgroup goes once the last process in it has
// been reaped, which is soon after it was killed.
func removeCgroups() error {
	roots, err := filepath.Glob("/sys/fs/cgroup/*/kubepods") // version 1
	if err != nil {
		return err
	}
	for _, root := range append(roots, "/sys/fs/cgroup/kubepods") { // version 2
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			err := removeDirs(root)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("remove cgroup: %w", err)
			}
		}
	}
	return nil
}

// removeDirs removes the directories below root and root: a cgroup's files can't be removed.
func removeDirs(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	slices.Reverse(dirs)
	for _, dir := range dirs {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

// onOneThread runs f on a thread that stays: a child's parent-death signal comes when the
// thread that started it ends, not the process.
func onOneThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}
