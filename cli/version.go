package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/build"
)

func newVersion(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Long: "Prints the version of this command and what it was built from.",
		Example: "  gpuaas version\n  gpuaas version -o json", Args: noArgs(),
		RunE: func(*cobra.Command, []string) error { return runVersion(e, build.Read()) },
	}
}

func runVersion(e *env, b build.Info) error {
	return e.print(b, func(w io.Writer) {
		fmt.Fprintf(w, "gpuaas %s", b.Version)
		if b.Revision != "" {
			fmt.Fprintf(w, " (%.12s)", b.Revision)
		}
		fmt.Fprintf(w, " %s %s\n", b.Go, b.Platform)
	})
}
