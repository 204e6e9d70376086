package verify

import (
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
)

// Status is the stored verifier set. Epoch and ExpiresAt are zero while only
// the bundle's keys are known of it.
type Status struct {
	Version   int64     `json:"version"`
	Hash      string    `json:"hash"`
	Epoch     int64     `json:"epoch"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// ReadStatus returns nil if no set is stored or the stored one cannot be parsed.
func ReadStatus(env string, state disk.StateDir) *Status {
	s, ok, err := load(state, env)
	if err != nil || !ok {
		return nil
	}
	return &Status{Version: s.Doc.Version, Hash: s.Hash, Epoch: s.Doc.Epoch, ExpiresAt: s.Doc.ExpiresAt}
}
