package agent

import "github.com/gpuaas/gpuaas/schema/audit"

// checkpointFile keeps the newest checkpoint of the audit trail.
const checkpointFile = "audit-checkpoint.json"

// keptCheckpoint is the newest checkpoint of the audit trail that the server sent. The
// agent cannot verify it: the server compares it with the trail when it comes back.
type keptCheckpoint struct {
	Checkpoint string `json:"checkpoint"`
	number     int64
}

// loadCheckpoint reads the checkpoint that an earlier process kept.
func (a *Agent) loadCheckpoint() {
	var kept keptCheckpoint
	if ok, err := a.state.ReadJSON(a.state.File(checkpointFile), &kept); err != nil || !ok {
		return // without it the node keeps the next one
	}
	if c, err := audit.ParseCheckpoint(kept.Checkpoint); err == nil {
		a.kept = keptCheckpoint{kept.Checkpoint, c.Number}
	}
}

// keepCheckpoint keeps the checkpoint in the answer to a poll if it is newer than the one
// that the node has.
func (a *Agent) keepCheckpoint(text string) {
	c, err := audit.ParseCheckpoint(text)
	if err != nil || c.Env != a.conf.Env || c.Number <= a.kept.number {
		return
	}
	a.kept = keptCheckpoint{text, c.Number}
	if err := a.state.Hint(checkpointFile, a.kept); err != nil {
		a.log.Warn("cannot write the audit checkpoint", "err", err.Error())
	}
}
