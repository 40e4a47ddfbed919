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

// removeCgroups removes kubelet's cgroups. A cgroup can be removed once its last process has been reaped, soon after
// the kill.
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

// removeDirs removes root and the directories below it, but no files: a cgroup's files can't be removed.
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

// onOneThread runs f on a locked thread: the kernel sends a child's parent-death signal when the starting thread ends,
// not the process.
func onOneThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}
