// Package version identifies the build of a program. Every program prints the same
// version and commit.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the build (-ldflags -X).
var version string

// Build describes the build of the running program.
type Build struct {
	Version string `json:"version"`
	// Commit is empty when the build does not record it.
	Commit string `json:"commit,omitempty"`
	// Modified is true when the source had changes that were not committed.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Read returns the build of the running program.
func Read() Build {
	b := Build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	if v := info.Main.Version; b.Version == "" && v != "(devel)" {
		b.Version = v
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	return b
}

// Version is the version of the build: the one that the linker set, else that of the
// module, else "dev".
func Version() string { return Read().Version }

// String is the version with its commit, Go version and platform.
func (b Build) String() string {
	if b.Commit != "" {
		return fmt.Sprintf("%s (commit %.12s) %s %s", b.Version, b.Commit, b.Go, b.Platform)
	}
	return fmt.Sprintf("%s %s %s", b.Version, b.Go, b.Platform)
}
