package upgrade

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// release is the programs of one version.
type release struct {
	// name is the version that the worker registers with Temporal.
	name string
	// bin is the folder of the programs.
	bin string
}

// program is the path of one program.
func (r release) program(name string) string { return filepath.Join(r.bin, name) }

// current is the version of the tree that ./task build made.
func current(t *testing.T) release {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	return versioned(t, bin)
}

// versioned reads the version of the programs in a folder.
func versioned(t *testing.T, bin string) release {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "gpuaas"), "admin", "promote", "--help").CombinedOutput()
	require.NoError(t, err, "%s; build it with ./task build", out)
	out, err = exec.CommandContext(t.Context(), filepath.Join(bin, "gpuaas"), "version").Output()
	require.NoError(t, err)
	words := strings.Fields(string(out))
	require.Greater(t, len(words), 1, string(out))
	return release{words[1], bin}
}

// previous builds the version of testdata/previous, or uses the build of an earlier run. The servers
// of the development stack are those of this version.
func previous(t *testing.T, servers string) release {
	t.Helper()
	commit := previousCommit(t)
	git := need.Program(t, "git", "install git")
	exists := exec.CommandContext(t.Context(), git, "cat-file", "-e", commit+"^{commit}").Run()
	need.That(t, exists == nil, "git does not have commit %s of testdata/previous; fetch the whole history", commit)
	folder, err := filepath.Abs(filepath.Join("..", "..", ".cache", "upgrade", commit))
	require.NoError(t, err)
	bin, source := filepath.Join(folder, "bin"), filepath.Join(folder, "src")
	if _, err := os.Stat(filepath.Join(bin, "complete")); err == nil {
		return versioned(t, bin)
	}
	require.NoError(t, os.MkdirAll(source, 0o755))
	require.NoError(t, os.MkdirAll(bin, 0o755))
	extract(t, git, commit, source)
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath",
		"-ldflags", "-s -w -X github.com/gpuaas/gpuaas/schema/version.version=v0-"+commit[:8],
		"-o", bin+"/", "./cmd/gpuaas", "./cmd/gpuaas-api", "./cmd/gpuaas-worker", "./cmd/gpuaas-fleet")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	for _, name := range []string{"gpuaas-dev-temporal", "gpuaas-dev-vault"} {
		_ = os.Remove(filepath.Join(bin, name)) // of an incomplete build
		require.NoError(t, os.Symlink(filepath.Join(servers, name), filepath.Join(bin, name)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(bin, "complete"), nil, 0o600))
	return versioned(t, bin)
}

// previousCommit reads testdata/previous.
func previousCommit(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("testdata/previous")
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line
		}
	}
	require.FailNow(t, "testdata/previous names no commit")
	return ""
}

// extract writes the tree of a commit into a folder.
func extract(t *testing.T, git, commit, folder string) {
	t.Helper()
	archive := exec.CommandContext(t.Context(), git, "-C", "../..", "archive", "--format=tar", commit)
	var tree, faults bytes.Buffer
	archive.Stdout, archive.Stderr = &tree, &faults
	require.NoError(t, archive.Run(), faults.String())
	untar := exec.CommandContext(t.Context(), "tar", "-x", "-C", folder)
	untar.Stdin = &tree
	out, err := untar.CombinedOutput()
	require.NoError(t, err, string(out))
}

// run runs a command of the version's gpuaas and returns its standard output. It repeats a command that
// finds a server too busy to respond, as an operator does.
func (r release) run(ctx context.Context, t *testing.T, env []string, args ...string) (stdout string) {
	t.Helper()
	var faults bytes.Buffer
	var err error
	harness.Poll(t, func() bool {
		c := exec.CommandContext(ctx, r.program("gpuaas"), args...)
		var out bytes.Buffer
		faults.Reset()
		c.Env, c.Stdout, c.Stderr = append(os.Environ(), env...), &out, &faults
		err = c.Run()
		stdout = out.String()
		return c.ProcessState.ExitCode() != schema.ExitUnreachable
	}, budget, every, args)
	require.NoError(t, err, "gpuaas %s of %s\n%s%s", strings.Join(args, " "), r.name, stdout, &faults)
	return stdout
}
