package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildInfo is what gpuaas version prints.
type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Long: "Prints the version of this command and what it was built from.",
		Example: "  gpuaas version\n  gpuaas version -o json", Args: noArgs(),
		RunE: func(*cobra.Command, []string) error { return runVersion(e, readBuild()) },
	}
}

func runVersion(e *env, b buildInfo) error {
	return e.print(b, func(w io.Writer) {
		fmt.Fprintf(w, "gpuaas %s", b.Version)
		if b.Revision != "" {
			fmt.Fprintf(w, " (%.12s)", b.Revision)
		}
		fmt.Fprintf(w, " %s %s\n", b.Go, b.Platform)
	})
}

func readBuild() buildInfo {
	b := buildInfo{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}
