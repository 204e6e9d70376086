package release

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Variables with which the installed binary launches a release.
const (
	installedVar = "GPUAAS_NODE_AGENT_INSTALLED" // path of the installed binary
	releaseVar   = "GPUAAS_NODE_AGENT_RELEASE"   // hex SHA-256 of the release
)

// executable is the mode of the binaries: the agent's user alone runs them.
const executable = 0o700

// Running is the binary of this process.
type Running struct {
	// Installed is the path of the installed binary.
	Installed string
	// Release is the hex SHA-256 of the release that runs, "" for the installed binary.
	Release string
}

// RunningOf reads from the environment which binary this process is.
func RunningOf(env []string) (r Running, err error) {
	for _, kv := range env {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case installedVar:
			r.Installed = v
		case releaseVar:
			r.Release = v
		}
	}
	if r.Installed == "" {
		r.Release = ""
		r.Installed, err = os.Executable()
	}
	return r, err
}

// Launcher starts the release that must run.
type Launcher struct {
	State   disk.StateDir
	Running Running
	// Args are those of the process, its name first.
	Args, Env []string
	// Exec replaces the process. Defaults to syscall.Exec.
	Exec func(path string, args, env []string) error
	Log  *slog.Logger
}

// Launch replaces the process by the release that must run. It returns nil if the process
// must continue with its own binary: it is a release, there is none, or none can be started.
// A damaged state never prevents that. The error says that another agent runs.
func (l Launcher) Launch() error {
	s := newStore(l.State)
	st, ok, err := s.load()
	switch {
	case l.Running.Release != "" || err == nil && !ok:
		return nil
	case err != nil:
		l.Log.Error("cannot read which release must run: the installed agent runs", "err", err.Error())
		return nil
	}
	lock, err := s.Lock()
	if err != nil {
		return err
	}
	defer lock.Release()
	sum, err := sumOf(l.Running.Installed)
	if err != nil {
		l.Log.Error("cannot read the installed agent: it runs, and the releases are kept", "err", err.Error())
		return nil
	}
	if sum != st.Installed {
		l.Log.Warn("another agent was installed: it runs instead of the releases before", "release", st.Current, "trial", st.Trial)
		if err := s.Remove(s.File(stateFile)); err != nil {
			l.Log.Error("cannot forget the releases", "err", err.Error())
		}
		s.clean(state{})
		return nil
	}
	l.try(s, &st)
	if st.Current != nil {
		err := l.exec(s, *st.Current)
		l.Log.Error("cannot start the release: the installed agent runs", "version", st.Current.Version, "err", err.Error())
	}
	return nil
}

// try starts the release on trial, if there is one. It returns if that fails.
func (l Launcher) try(s store, st *state) {
	if st.Trial == nil {
		return
	}
	if st.Starts >= task.TrialStarts {
		l.fail(s, st, fmt.Sprintf("it was started %d times and made no successful poll", st.Starts))
		return
	}
	st.Starts++
	if err := s.save(*st); err != nil {
		// Starts that are not counted could be repeated forever.
		l.Log.Error("cannot record the start of the release on trial", "err", err.Error())
		return
	}
	l.Log.Info("release on trial", "version", st.Trial.Version, "start", st.Starts)
	l.fail(s, st, "it cannot be started: "+l.exec(s, *st.Trial).Error())
}

func (l Launcher) fail(s store, st *state, reason string) {
	l.Log.Error("upgrade rolled back", "version", st.Trial.Version, "reason", reason)
	st.fail(reason)
	if err := s.save(*st); err != nil {
		l.Log.Error("cannot record that the upgrade was rolled back", "err", err.Error()) // the next start does it again
	}
}

// exec replaces the process by a release. It always returns an error if it returns.
func (l Launcher) exec(s store, of slot) error {
	path := s.binary(of.SHA256)
	sum, err := sumOf(path)
	switch {
	case err != nil:
		return err
	case sum != of.SHA256:
		return errors.New("the binary on disk has changed")
	}
	if err := os.Chmod(path, executable); err != nil {
		return err
	}
	replace := l.Exec
	if replace == nil {
		replace = syscall.Exec
	}
	env := append(without(l.Env), installedVar+"="+l.Running.Installed, releaseVar+"="+of.SHA256)
	if err := replace(path, l.Args, env); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return errors.New("it was started and returned")
}

// without returns an environment without the variables of a launch.
func without(env []string) (kept []string) {
	for _, kv := range env {
		if k, _, _ := strings.Cut(kv, "="); k != installedVar && k != releaseVar {
			kept = append(kept, kv)
		}
	}
	return kept
}

// Restart replaces the process by the installed binary, which launches the release that must
// run. It returns only an error.
func Restart(r Running, args, env []string) error {
	return fmt.Errorf("restarting %s: %w", r.Installed, syscall.Exec(r.Installed, args, without(env)))
}

// sumOf returns the hex SHA-256 of a file.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it is open for reading only
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
