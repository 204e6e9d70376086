package store

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// nextDatabase is the next step for a fault that only a writer to the database explains.
const nextDatabase = "find out who can write to the database"

// Faults returns what shows that a part of the audit trail was removed or replaced, or
// lost by a restore of the database, that a node keeps a false checkpoint, or that no
// checkpoints are signed. With an error it returns the faults that it read before.
func (s *Checkpoints) Faults(ctx context.Context) (faults []wire.ControlPlaneFault, err error) {
	for _, read := range []func(context.Context) (*wire.ControlPlaneFault, error){s.missingFault, s.unverifiedFault, s.cutFault, s.staleFault} {
		fault, err := read(ctx)
		if err != nil {
			return faults, err
		}
		if fault != nil {
			fault.Component = "audit-trail"
			faults = append(faults, *fault)
		}
	}
	return faults, nil
}

func (s *Checkpoints) missingFault(ctx context.Context) (*wire.ControlPlaneFault, error) {
	missing, err := query(ctx, s.db, "reading missing audit checkpoints", s.db.q.MissingCheckpoints)
	if err != nil || missing.Checkpoints == 0 {
		return nil, err
	}
	newest := ""
	if c, err := audit.ParseCheckpoint(missing.Newest); err == nil { // else the row is false
		newest = fmt.Sprintf(", the newest %d of %s on node %s", c.Number, c.At.Format(time.RFC3339), missing.NodeID)
	}
	return &wire.ControlPlaneFault{Reason: "checkpoint_missing", Message: fmt.Sprintf(
		"nodes keep %d signed audit checkpoints that the database does not have%s: the database was restored, or a part of the audit trail was removed or replaced",
		missing.Checkpoints, newest),
		Next: "after a restore: gpuaas audit --accept-gap --reason TEXT; otherwise " + nextDatabase}, nil
}

func (s *Checkpoints) unverifiedFault(ctx context.Context) (*wire.ControlPlaneFault, error) {
	unsigned, err := query(ctx, s.db, "reading false audit checkpoints", s.db.q.UnverifiedCheckpoints)
	if err != nil || unsigned.Nodes == 0 {
		return nil, err
	}
	return &wire.ControlPlaneFault{Reason: "checkpoint_unverified", Message: fmt.Sprintf(
		"%d nodes kept an audit checkpoint that the key in Vault did not sign, for example %s: the node or a gpuaas-api made it, or Vault lost the key",
		unsigned.Nodes, unsigned.First),
		Next: "on one node, inspect the node, and on many each gpuaas-api; then gpuaas audit --verify, and gpuaas audit --accept-gap --reason TEXT"}, nil
}

func (s *Checkpoints) cutFault(ctx context.Context) (*wire.ControlPlaneFault, error) {
	cut, err := query(ctx, s.db, "reading cut audit streams", s.db.q.CutStreams)
	if err != nil || cut.Streams == 0 {
		return nil, err
	}
	return &wire.ControlPlaneFault{Reason: "events_missing", Message: fmt.Sprintf(
		"%d audit streams lack events that a checkpoint covers, for example %s", cut.Streams, cut.First),
		Next: "gpuaas audit --verify, and " + nextDatabase}, nil
}

func (s *Checkpoints) staleFault(ctx context.Context) (*wire.ControlPlaneFault, error) {
	stale, err := query(ctx, s.db, "reading audit streams without a checkpoint", func(ctx context.Context) (sqlc.StaleHeadsRow, error) {
		return s.db.q.StaleHeads(ctx, uncoveredAfter.Seconds())
	})
	if err != nil || stale.Streams == 0 {
		return nil, err
	}
	return &wire.ControlPlaneFault{Reason: "checkpoint_stale", Message: fmt.Sprintf(
		"%d audit streams have events that no checkpoint covers, the oldest for %s",
		stale.Streams, time.Duration(stale.OldestSeconds*float64(time.Second)).Truncate(time.Second)),
		Next: "check that a gpuaas-worker runs; its log has the error if it cannot sign or store a checkpoint"}, nil
}
