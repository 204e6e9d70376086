package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// memoryFile and removedFile are names in the state folder.
const (
	memoryFile  = "identity.json"
	removedFile = "removed.json"
)

// maxSpent bounds the list of spent tokens; the env file holds the last one for
// long only where it cannot be written, and that one is never dropped.
const maxSpent = 16

// recollection is what the keeper remembers beside the versions. Losing it loses
// nothing that cannot be found out again.
type recollection struct {
	// Seen is the digest of the env file's token when it was last acted on:
	// another one means that an operator put it there.
	Seen string `json:"seen,omitempty"`
	// Spent are digests of tokens that paid for an identity.
	Spent []string `json:"spent,omitempty"`
	// Installed is true once the copies at the configured paths were made, so
	// that both missing means that somebody moved them aside.
	Installed bool `json:"installed,omitempty"`
	// Proven is the newest version that the server was seen to accept.
	Proven int `json:"proven,omitempty"`
	// ServerTime is the latest time that the server told: a lower bound.
	ServerTime time.Time `json:"server_time,omitzero"`
}

func loadMemory(s stateDir) (recollection, bool, error) {
	var m recollection
	ok, err := s.readJSON(s.file(memoryFile), &m)
	return m, ok, err
}

// spend notes tokens that paid for an identity, forgetting the oldest but never
// the one in the env file.
func (m *recollection) spend(env string, digests ...string) {
	for _, d := range digests {
		if d != "" && !slices.Contains(m.Spent, d) {
			m.Spent = append(m.Spent, d)
		}
	}
	for i := 0; len(m.Spent) > maxSpent && i < len(m.Spent); {
		if m.Spent[i] == env {
			i++
			continue
		}
		m.Spent = slices.Delete(m.Spent, i, i+1)
	}
}

// removal is the durable note that the node was removed: the agent must not
// come back with what a wipe could not reach.
type removal struct {
	NodeID string    `json:"node_id"`
	At     time.Time `json:"at"`
	// Token is the digest of the env file's token at the time.
	Token string `json:"token,omitempty"`
}

// gone reports whether this node was removed and no new token came since.
func (s stateDir) gone(c Config) bool {
	var r removal
	if ok, err := s.readJSON(s.file(removedFile), &r); err != nil || !ok {
		return false
	}
	return r.NodeID == c.NodeID && (c.EnrollmentToken == "" || tokenDigest(string(c.EnrollmentToken)) == r.Token)
}

// replaceEnvToken puts a token into the env file in the place of one that may
// go. It returns false when the file holds another one by now: an operator's.
func replaceEnvToken(d disk, path, token string, mayGo func(old string) bool) (bool, error) {
	text, err := d.system().ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	vars, err := parseEnvFile(string(text))
	if err != nil {
		return false, fmt.Errorf("env file %s: %w", path, err)
	}
	old, there := vars[tokenVar]
	switch {
	case there && old == token:
		return true, nil
	case there && old != "" && !mayGo(old):
		return false, nil
	}
	if target, err := os.Readlink(path); err == nil {
		return false, fmt.Errorf("env file %s is a link to %s and is left alone", path, target)
	}
	return true, d.write(path, []byte(setEnvValue(string(text), tokenVar, token)))
}
