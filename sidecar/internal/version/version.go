// Package version names the build of a program.
package version

import "runtime/debug"

// release is set by the linker.
var release string

// Name returns the release; of a build without one, its commit.
func Name() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
