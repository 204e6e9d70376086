package dev

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// withFleet replaces the fleet program by a script and returns a function that runs
// commands on a stack.
func withFleet(t *testing.T, script string) (run func(out io.Writer, args ...string) error, dir string) {
	t.Helper()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, fleetBinary), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	s := testStack(t)
	require.NoError(t, s.layout.save(s.record))
	return func(out io.Writer, args ...string) error {
		root := &cobra.Command{Use: "gpuaas", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(NewCommand(out, t.Output(), nil))
		root.SetArgs(append([]string{"dev", "--dir", s.layout.dir}, args...))
		return root.ExecuteContext(t.Context())
	}, s.layout.dir
}

func TestFleetPassesFlags(t *testing.T) {
	run, dir := withFleet(t, `echo "$@"; test -n "$GPUAAS_API_TOKEN" && echo "$GPUAAS_API_URL"`)
	var out bytes.Buffer
	require.NoError(t, run(&out, "fleet", "7", "--misbehave", "slow=5%", "--task-time", "3s"))
	require.Equal(t, "7 --state="+dir+"/fleet --log="+dir+"/log/fleet.log --misbehave=slow=5% --task-time=3s\n"+
		testRecord(t).adminURL()+"\n", out.String(), "the program applies its own defaults, and no argument is a secret")
}

func TestFleetPassesEveryFlag(t *testing.T) {
	t.Parallel()
	c := newFleet(&options{})
	var names []string
	for _, name := range fleetFlags() {
		require.NotNil(t, c.Flag(name), name)
		require.NoError(t, c.Flags().Set(name, c.Flag(name).Value.String()))
		names = append(names, name)
	}
	require.Len(t, fleetArgs(c, "1", "s", "l"), 3+len(names))
}

func TestFleetReturnsExitCode(t *testing.T) {
	run, _ := withFleet(t, "exit 3")
	var ended *EndedError
	require.ErrorAs(t, run(io.Discard, "fleet", "7"), &ended)
	require.Equal(t, 3, ended.Code)
}
