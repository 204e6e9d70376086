package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/envfile"
)

// memoryFile and removedFile are names in the state folder.
const (
	memoryFile  = "identity.json"
	removedFile = "removed.json"
)

// maxSpent bounds the list of spent tokens; the env file holds the last one for
// long only where it cannot be written, and that one is never dropped.
const maxSpent = 16

// persistedState is the state that outlives the process, except for the versions. If it
// is lost, the agent derives it again.
type persistedState struct {
	// Seen is the digest of the env file's token when it was last used. A different
	// token was put there by an operator.
	Seen string `json:"seen,omitempty"`
	// Spent are digests of tokens that were used to obtain an identity.
	Spent []string `json:"spent,omitempty"`
	// Installed is the newest version that was copied to the configured paths. If
	// both copies are missing, an operator moved them aside.
	Installed int `json:"installed_version,omitempty"`
	// Proven is the newest version that the server accepted.
	Proven int `json:"proven,omitempty"`
	// ServerTime is the latest time that a server sent: a lower bound.
	ServerTime time.Time `json:"server_time,omitzero"`
}

// spend adds digests to those of the spent tokens. It forgets the oldest but never
// that of the env file's token.
func spend(spent []string, env string, digests ...string) []string {
	spent = slices.Clone(spent)
	for _, d := range digests {
		if d != "" && !slices.Contains(spent, d) {
			spent = append(spent, d)
		}
	}
	for len(spent) > maxSpent {
		oldest := 0
		if spent[oldest] == env {
			oldest++
		}
		spent = slices.Delete(spent, oldest, oldest+1)
	}
	return spent
}

// removal is the durable note that the node was removed: the agent must not
// start again with data that a wipe could not remove.
type removal struct {
	NodeID string    `json:"node_id"`
	At     time.Time `json:"at"`
	// Token is the digest of the configured token at the time, and Own are those of
	// the recovery tokens, one of which may have replaced it in the env file.
	Token string   `json:"token,omitempty"`
	Own   []string `json:"own,omitempty"`
}

// wasRemoved reports whether this node was removed and has no new token since.
func wasRemoved(s disk.StateDir, c Config) bool {
	var r removal
	if ok, err := s.ReadJSON(s.File(removedFile), &r); err != nil || !ok {
		return false
	}
	now := tokenDigest(c.Token.Reveal())
	return r.NodeID == c.NodeID && (c.Token.Empty() || now == r.Token || slices.Contains(r.Own, now))
}

// replaceEnvToken replaces the env file's token if mayReplace allows that. It returns false
// if the file holds an operator's token.
func replaceEnvToken(d disk.StateDir, path, token string, mayReplace func(old string) bool) (bool, error) {
	text, err := d.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	vars, err := envfile.Parse(string(text))
	if err != nil {
		return false, fmt.Errorf("env file %s: %w", path, err)
	}
	old, there := vars[envfile.TokenVar]
	switch {
	case there && old == token:
		return true, nil
	case there && old != "" && !mayReplace(old):
		return false, nil
	}
	if target, err := os.Readlink(path); err == nil {
		return false, fmt.Errorf("env file %s is a link to %s and is left alone", path, target)
	}
	return true, d.Write(path, []byte(envfile.Set(string(text), envfile.TokenVar, token)))
}
