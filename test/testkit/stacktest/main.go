// Package stacktest starts a development stack for the tests of a package, and drives it with the
// command line, as an operator does. It needs bin/ (./task build).
package stacktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/test/stack"
)

// Root is the root of the repository, from the folder of a suite: suites are in test/NAME.
const Root = "../.."

// Suite is a package whose tests share a stack.
type Suite struct {
	// Name names the temporary folder and the folder of the logs.
	Name string
	// Before, which may be nil, runs before the stack starts in folder/dev, and returns variables for
	// gpuaas dev up, as NAME=value. folder is removed at the end.
	Before func(folder string) (env []string, err error)
	// Use runs before the tests. end, which may be nil, runs after them, also after an error.
	Use func(*Stack) (end func(), err error)
}

// Main runs the tests of the suite on a stack, and returns the exit code. With -short it runs them
// without a stack: those that need one begin with Need. The logs of a stack on which a test failed
// are kept in .cache/test.
func (s Suite) Main(m *testing.M) int {
	if testing.Short() {
		return m.Run()
	}
	code, err := s.run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
		return 1
	}
	return code
}

// Need skips a test in the short mode, in which there is no stack.
func Need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a stack")
	}
}

func (s Suite) run(m *testing.M) (code int, err error) {
	bin, err := filepath.Abs(filepath.Join(Root, "bin", "gpuaas"))
	if err != nil {
		return 1, err
	}
	folder, err := os.MkdirTemp("", "gpuaas-"+s.Name+"-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o755); err != nil { // Postgres runs as another user
		return 1, err
	}
	var env []string
	if s.Before != nil {
		if env, err = s.Before(folder); err != nil {
			return 1, err
		}
	}
	started := time.Now()
	up, err := stack.UpWith(context.Background(), bin, filepath.Join(folder, "dev"), env)
	defer func() { err = errors.Join(err, up.Down()) }()
	if err != nil {
		return 1, err
	}
	end, err := s.Use(&Stack{Stack: up, Folder: folder, Started: started})
	if end != nil {
		defer end()
	}
	if err != nil {
		return 1, err
	}
	if code = m.Run(); code != 0 {
		err = s.keepLogs(filepath.Join(up.Dir, "log"))
	}
	return code, err
}

// keepLogs copies the logs of the stack, whose folder is removed.
func (s Suite) keepLogs(logs string) error {
	kept, err := filepath.Abs(filepath.Join(Root, ".cache", "test", s.Name+"-logs"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(kept), os.CopyFS(kept, os.DirFS(logs))); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s: the logs of the stack are in %s\n", s.Name, kept)
	return nil
}
