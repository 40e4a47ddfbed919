// Package version names the build of a program.
package version

import "runtime/debug"

// release and checkout are set by the linker: by a release, and by make build to what git describes.
var release, checkout string

// Name returns the release; of a build without a release, the commit, with -dirty if files had changed since.
func Name() string {
	info, _ := debug.ReadBuildInfo()
	return chooseName(release, checkout, info)
}

// chooseName returns the first known name. Go records no commit in a checkout that git can't read, or with
// -buildvcs=false; of a program that go install has downloaded, Go knows the module's version.
func chooseName(release, checkout string, info *debug.BuildInfo) string {
	settings := map[string]string{}
	module := ""
	if info != nil {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		module = info.Main.Version
	}
	switch {
	case release != "":
		return release
	case checkout != "":
		return checkout
	case settings["vcs.revision"] != "" && settings["vcs.modified"] == "true":
		return settings["vcs.revision"] + "-dirty"
	case settings["vcs.revision"] != "":
		return settings["vcs.revision"]
	case module != "" && module != "(devel)":
		return module
	}
	return "unknown"
}
