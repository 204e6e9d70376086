// Package build describes the build of the running program. Every program reports
// the same version.
package build

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// version is set by the linker (-ldflags -X).
var version string

// Info describes a build.
type Info struct {
	// Version is the version that the linker set, else the module's version or
	// commit, else "dev".
	Version string `json:"version"`
	// Revision is the commit, "" when the build does not record it.
	Revision string `json:"revision,omitempty"`
	// Modified is true if the working tree had changes.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Version returns the version of the running program.
func Version() string { return Read().Version }

// Read returns the build of the running program.
func Read() Info {
	b := Info{Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	module := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
		if module = info.Main.Version; module == "(devel)" {
			module = ""
		}
	}
	b.Version = cmp.Or(version, module, b.Revision, "dev")
	return b
}
