package daemon

import "runtime/debug"

// version is set by the build (-ldflags -X).
var version string

// Version returns the version of the build: the one that the linker set, else
// the module's version or commit, else "dev".
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if r := revision(info); r != "" {
		return r
	}
	return "dev"
}

// Revision returns the commit of the build, "" when the build does not record it.
func Revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return revision(info)
	}
	return ""
}

func revision(info *debug.BuildInfo) string {
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
