package version

import (
	"runtime/debug"
	"testing"
)

func TestChoose(t *testing.T) {
	built := func(module string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: settings}
	}
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "c0ffee"}
	for _, tt := range []struct {
		name, release, checkout string
		info                    *debug.BuildInfo
		want                    string
	}{
		{"a release", "0.2.0", "c0ffee-dirty", built("(devel)", commit), "0.2.0"},
		{"make build", "", "c0ffee-dirty", built("(devel)"), "c0ffee-dirty"},
		{"go build", "", "", built("(devel)", commit), "c0ffee"},
		{"go build, changed", "", "", built("(devel)", commit, debug.BuildSetting{Key: "vcs.modified", Value: "true"}),
			"c0ffee-dirty"},
		{"go install", "", "", built("v0.2.0"), "v0.2.0"},
		{"no git", "", "", built("(devel)"), "unknown"},
		{"no information", "", "", nil, "unknown"},
	} {
		if got := chooseName(tt.release, tt.checkout, tt.info); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
