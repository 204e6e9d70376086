package store

import (
	"cmp"
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Repairs implements activities.Repairs and adminapi.Repairs.
type Repairs struct{ db *db }

// Boot implements activities.Repairs.
func (s *Repairs) Boot(ctx context.Context, nodeID string) (activities.NodeBoot, error) {
	n, err := ofNode(ctx, s.db, "reading the boot", nodeID, s.db.q.NodeBoot)
	if err != nil {
		return activities.NodeBoot{}, err
	}
	if locked := refusedLocked(n.Host, lockOf(n.IdentityLockedAt, n.IdentityLockReason, n.IdentityLockedBy, n.IdentityLockNote)); locked != nil {
		return activities.NodeBoot{}, locked
	}
	return activities.NodeBoot{BootID: n.BootID, Incarnation: n.Incarnation, Age: time.Duration(n.Seconds * float64(time.Second)),
		Uptime: time.Duration(min(n.UptimeSeconds, maxUptime)) * time.Second, Deaf: n.Deaf}, nil
}

// maxUptime bounds what a node may say of its uptime, in seconds.
const maxUptime = 100 * 365 * 24 * 60 * 60

// Conditions implements activities.Repairs.
func (s *Repairs) Conditions(ctx context.Context, nodeID string) ([]health.Condition, error) {
	rows, err := query(ctx, s.db, "reading the conditions of node "+nodeID, func(ctx context.Context) ([]sqlc.NodeConditionsRow, error) {
		if !schema.IsID(nodeID) {
			return nil, errNoNode(nodeID)
		}
		return s.db.q.NodeConditions(ctx, wire.StaleHealth.Seconds(), nodeID)
	})
	return convert(rows, presentCondition), err
}

// presentCondition is a condition as it is now.
func presentCondition(r sqlc.NodeConditionsRow) health.Condition {
	c := health.Condition{Checker: r.Checker, Component: r.Component, Status: r.Status, Reason: r.Reason, Code: r.Code, Repair: r.Repair,
		Detail: r.Detail, Since: r.Since.UTC(), Samples: r.Samples}
	if !r.Fresh {
		c.Status, c.Repair = health.Unknown, ""
	}
	return c
}

// RecordAttempt implements activities.Repairs.
func (s *Repairs) RecordAttempt(ctx context.Context, f activities.Fence, a recovery.Attempt) (bootBefore string, err error) {
	return write(ctx, s.db, "recording a rung of operation "+f.OperationID, func(ctx context.Context, tx *tx) (string, error) {
		if err := tx.lockOpenHolder(ctx, f); err != nil {
			return "", err
		}
		if a.OperationID != f.OperationID || a.NodeID != f.NodeID {
			return "", schema.NewError(schema.KindInvalidRequest, "the rung is of another operation or node")
		}
		before, err := tx.BootBefore(ctx, a.OperationID, a.Rung)
		if err != nil && !postgres.NotFound(err) {
			return "", err
		}
		a.BootBefore = cmp.Or(before, cleanText(a.BootBefore))
		p := sqlc.UpsertAttemptParams{OperationID: a.OperationID, Rung: a.Rung, NodeID: a.NodeID, SKU: a.SKU, Fault: a.Fault,
			StartedAt: a.StartedAt, Outcome: a.Outcome, BootBefore: a.BootBefore, BootAfter: cleanText(a.BootAfter),
			Tests: make([]recovery.Test, len(a.Tests))}
		for i, t := range a.Tests {
			p.Tests[i] = recovery.Test{Name: cleanText(t.Name), OK: t.OK, Detail: cleanText(t.Detail)}
		}
		if !a.EndedAt.IsZero() {
			p.EndedAt = &a.EndedAt
		}
		return a.BootBefore, tx.UpsertAttempt(ctx, p)
	})
}

// BeginReset implements activities.Repairs.
func (s *Repairs) BeginReset(ctx context.Context, f activities.Fence, step string) (began bool, err error) {
	return write(ctx, s.db, "recording a reset by operation "+f.OperationID, func(ctx context.Context, tx *tx) (bool, error) {
		op, err := tx.lockHeld(ctx, f)
		switch {
		case err != nil:
			return false, err
		case op.EndedAt != nil:
			return false, errOperationEnded(f)
		case lifecycle.IsUndo(op.Phase):
			return false, errUndoBegan(f)
		}
		rows, err := tx.InsertReset(ctx, f.OperationID, step)
		return rows > 0, err
	})
}

// ForgetReset implements activities.Repairs.
func (s *Repairs) ForgetReset(ctx context.Context, f activities.Fence, step string) error {
	return s.db.write(ctx, "forgetting a reset by operation "+f.OperationID, func(ctx context.Context, tx *tx) error {
		if _, err := tx.lockHeld(ctx, f); err != nil {
			return err
		}
		return tx.DeleteReset(ctx, f.OperationID, step)
	})
}

// ReplaceInstance implements activities.Repairs. The node is registered then, as after a termination,
// so that its next machine can enroll.
func (s *Repairs) ReplaceInstance(ctx context.Context, f activities.Fence, instanceID string) (lifecycle.Instance, error) {
	return write(ctx, s.db, "replacing instance "+instanceID, func(ctx context.Context, tx *tx) (lifecycle.Instance, error) {
		n, op, err := tx.lockOperation(ctx, f)
		switch {
		case err != nil:
			return lifecycle.Instance{}, err
		case op.EndedAt != nil:
			return lifecycle.Instance{}, errOperationEnded(f)
		case lifecycle.IsUndo(op.Phase):
			return lifecycle.Instance{}, errUndoBegan(f)
		}
		old, err := tx.liveInstance(ctx, f.NodeID)
		if err != nil || old.InstanceID != instanceID && old.State.Live() {
			return old, err // an earlier call replaced it
		}
		if err := requireTornDown(ctx, tx, n, f.OperationID); err != nil {
			return old, err
		}
		return replaceInstance(ctx, tx, f, n, old)
	})
}

// requireTornDown rejects the end of an instance whose machine may exist, unless a person forced the
// teardown.
func requireTornDown(ctx context.Context, tx *tx, n sqlc.LockNodeRow, operationID string) error {
	document, err := tx.OperationDocument(ctx, operationID)
	if err != nil || (activities.Finish{Document: document}).TeardownForced() {
		return err
	}
	return requireReleased(ctx, tx, n)
}

func replaceInstance(ctx context.Context, tx *tx, f activities.Fence, n sqlc.LockNodeRow, old lifecycle.Instance) (lifecycle.Instance, error) {
	if _, err := setInstance(ctx, tx, f.NodeID, lifecycle.InstanceTerminated); err != nil {
		return old, err
	}
	if err := endMachine(ctx, tx, n); err != nil {
		return old, err
	}
	provider, err := providerOf(ctx, tx, n.OnboardingMode)
	if err != nil {
		return old, err
	}
	next, err := beginInstance(ctx, tx, n, old.Options, provider)
	if err != nil {
		return next, err
	}
	tx.note(operationEvent(f, audit.InstanceChanged, audit.Succeeded, "", map[string]string{"from": old.InstanceID, "to": next.InstanceID,
		"phase": lifecycle.PhaseReplace}))
	return next, tx.moveNode(ctx, n, lifecycle.NodeRegistered)
}

// KeepEvidence implements activities.Repairs. It reads and stores in one transaction.
func (s *Repairs) KeepEvidence(ctx context.Context, f activities.Fence, fault recovery.Fault, attempts []recovery.Attempt) error {
	return s.db.write(ctx, "keeping the evidence of operation "+f.OperationID, func(ctx context.Context, tx *tx) error {
		if err := tx.lockOpenHolder(ctx, f); err != nil {
			return err
		}
		b, err := evidenceOf(ctx, tx, f)
		if err != nil {
			return err
		}
		b.Fault, b.Attempts = fault, attempts
		if b, err = b.Bounded().Clean(secrets.New()); err != nil {
			return schema.Wrap(schema.KindInternal, err, "redacting the evidence of operation %s", f.OperationID)
		}
		return tx.InsertBundle(ctx, sqlc.InsertBundleParams{OperationID: f.OperationID, NodeID: f.NodeID, Host: b.Host, Bundle: b})
	})
}

// evidenceOf reads what the database has about the node of a repair.
func evidenceOf(ctx context.Context, tx *tx, f activities.Fence) (evidence.Bundle, error) {
	n, err := tx.BundleNode(ctx, f.NodeID)
	if err != nil {
		return evidence.Bundle{}, err
	}
	b := evidence.Bundle{OperationID: f.OperationID, NodeID: n.NodeID, Host: n.Host, SKU: n.SKU, Region: n.RegionCode, Provider: n.OnboardingMode,
		At: n.Now.UTC(), BootID: n.BootID, AgentVersion: n.AgentVersion, Facts: n.Facts}
	i, err := tx.liveInstance(ctx, f.NodeID)
	if err != nil {
		return b, err
	}
	b.InstanceID, b.ExternalID = i.InstanceID, i.ExternalID
	earlier, err := tx.RecentAttempts(ctx, f.NodeID, f.OperationID, evidence.MaxEarlier)
	if err != nil {
		return b, err
	}
	b.Earlier = convert(earlier, attemptOf)
	conditions, err := tx.NodeConditions(ctx, wire.StaleHealth.Seconds(), f.NodeID)
	if err != nil {
		return b, err
	}
	signals, err := tx.BundleSignals(ctx, f.NodeID, evidence.MaxSignals)
	if err != nil {
		return b, err
	}
	b.Conditions = convert(conditions, presentCondition)
	b.Signals = convert(signals, func(r sqlc.BundleSignalsRow) health.Signal {
		return health.Signal{SignalID: r.SignalID, Type: r.Type, Source: r.Source, NodeID: f.NodeID, At: r.At.UTC(), Status: r.Status,
			Component: r.Component, Reason: r.Reason, Code: r.Code, Repair: r.Repair, BootID: r.BootID, Detail: r.Detail}
	})
	tasks, err := tx.BundleTasks(ctx, f.OperationID, evidence.MaxTasks)
	if err != nil {
		return b, err
	}
	b.Tasks = convert(tasks, evidenceTask)
	trail, err := tx.BundleAudit(ctx, f.NodeID, f.OperationID)
	b.Audit = evidence.AuditRange{Stream: f.NodeID, First: trail.FirstSeq, Last: trail.LastSeq}
	return b, err
}

func evidenceTask(r sqlc.BundleTasksRow) evidence.Task {
	t := evidence.Task{TaskID: r.TaskID, Type: r.Type, Status: r.Status, Step: r.Step, FinishedAt: r.FinishedAt}
	if r.Result == nil {
		return t
	}
	if t.Message = r.Result.Message; len(r.Result.Output) <= evidence.MaxOutput {
		t.Output = r.Result.Output
	}
	return t
}

func attemptOf(r sqlc.RecoveryAttempt) recovery.Attempt {
	a := recovery.Attempt{OperationID: r.OperationID, NodeID: r.NodeID, SKU: r.SKU, Rung: r.Rung, Fault: r.Fault, StartedAt: r.StartedAt.UTC(),
		Outcome: r.Outcome, BootBefore: r.BootBefore, BootAfter: r.BootAfter, Tests: r.Tests}
	if r.EndedAt != nil {
		a.EndedAt = r.EndedAt.UTC()
	}
	return a
}

// Evidence implements adminapi.Repairs.
func (s *Repairs) Evidence(ctx context.Context, node wire.NodeView) (evidence.Bundle, error) {
	return query(ctx, s.db, "reading the evidence of node "+node.ID, func(ctx context.Context) (evidence.Bundle, error) {
		b, err := s.db.q.NewestBundle(ctx, node.ID)
		return b, orMissing(err, schema.NewError(schema.KindNotFound, "there is no evidence of a repair of node %s", node.Host).
			WithNext("gpuaas op list --node "+node.Host))
	})
}

// DeleteEvidence implements activities.OldRecords.
func (s *Retention) DeleteEvidence(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	return query(ctx, s.db, "deleting old evidence of repairs", func(ctx context.Context) (int64, error) {
		return s.db.q.DeleteOldBundles(ctx, keep.Seconds(), int64(limit))
	})
}
