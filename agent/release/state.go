package release

import (
	"github.com/gpuaas/gpuaas/agent/internal/disk"
)

// folder holds the binaries of releases, each under the hex SHA-256 of its content, and
// stateFile says which of them runs, both in the state folder.
const (
	folder    = "releases"
	stateFile = "releases.json"
)

// slot is a binary in the folder.
type slot struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	TaskID  string `json:"task_id"` // of the upgrade
}

// failure is the end of the latest trial that failed.
type failure struct {
	slot
	Reason string `json:"reason"`
}

// state is the content of stateFile.
type state struct {
	// Installed is the hex SHA-256 of the installed binary. If it is another one, an
	// operator installed a package since, which is then what must run.
	Installed string `json:"installed"`
	// Current is the newest release that worked, nil for the installed binary.
	Current *slot `json:"current,omitempty"`
	// Trial has not made a successful poll yet. Starts counts its starts.
	Trial  *slot    `json:"trial,omitempty"`
	Starts int      `json:"starts,omitempty"`
	Failed *failure `json:"failed,omitempty"`
}

// fail ends the trial: Current runs again.
func (s *state) fail(reason string) {
	if s.Trial != nil {
		s.Failed = &failure{*s.Trial, reason}
	}
	s.Trial, s.Starts = nil, 0
}

// keep ends the trial: its release is the current one.
func (s *state) keep() { s.Current, s.Trial, s.Starts, s.Failed = s.Trial, nil, 0, nil }

// store is the state and the binaries on disk.
type store struct{ disk.StateDir }

// newStore uses no ballast: that is for the agent's records, and too small for a binary.
func newStore(s disk.StateDir) store {
	s.Ballast = ""
	return store{s}
}

func (s store) load() (st state, ok bool, err error) {
	ok, err = s.ReadJSON(s.File(stateFile), &st)
	return st, ok, err
}

func (s store) save(st state) error { return s.WriteJSON(s.File(stateFile), st) }

func (s store) binary(sha256 string) string { return s.File(folder, sha256) }

// clean removes the binaries that no slot names. One that cannot be removed stays until the
// next upgrade.
func (s store) clean(st state) {
	wanted := map[string]bool{}
	for _, slot := range []*slot{st.Current, st.Trial} {
		if slot != nil {
			wanted[slot.SHA256] = true
		}
	}
	entries, err := s.ReadDir(s.File(folder))
	if err != nil {
		return
	}
	for _, e := range entries {
		if !wanted[e.Name()] {
			s.Remove(s.File(folder, e.Name())) //nolint:errcheck // see above
		}
	}
}
