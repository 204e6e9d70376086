package agent

import (
	"log/slog"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// checkpointFile keeps the newest checkpoint of the audit trail.
const checkpointFile = "audit-checkpoint.json"

// checkpoint keeps the newest checkpoint of the audit trail that the server sent. The
// agent cannot verify it: the server does, and compares it with the trail, when it comes
// back.
type checkpoint struct {
	env    string
	state  disk.StateDir
	log    *slog.Logger
	text   string
	number int64
}

// storedCheckpoint is the content of checkpointFile.
type storedCheckpoint struct {
	Checkpoint string `json:"checkpoint"`
}

// newCheckpoint reads the checkpoint that an earlier process kept.
func newCheckpoint(env string, state disk.StateDir, log *slog.Logger) *checkpoint {
	k := &checkpoint{env: env, state: state, log: log}
	var stored storedCheckpoint
	if ok, err := state.ReadJSON(state.File(checkpointFile), &stored); err == nil && ok { // else the node keeps the next one
		if c, err := audit.ParseCheckpoint(stored.Checkpoint); err == nil && c.Env == env {
			k.text, k.number = stored.Checkpoint, c.Number
		}
	}
	return k
}

// keep keeps the checkpoint in the answer to a poll if it is newer than the one that the
// node has, or if replace says that no key signed that one: a false checkpoint with a great
// number would otherwise exclude all others.
func (k *checkpoint) keep(text string, replace bool) {
	c, err := audit.ParseCheckpoint(text)
	if err != nil || c.Env != k.env || text == k.text || c.Number <= k.number && !replace {
		return
	}
	if replace {
		k.log.Warn("the server reports that the audit checkpoint of this node is false: the node keeps the server's", "replaced", k.number, "number", c.Number)
	}
	k.text, k.number = text, c.Number
	if err := k.state.Hint(checkpointFile, storedCheckpoint{text}); err != nil {
		k.log.Warn("cannot write the audit checkpoint", "err", err.Error())
	}
}
