package store

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// SurplusMachines stores the surplus machines of providers. It implements
// activities.SurplusMachines.
type SurplusMachines struct{ db *db }

// Record implements activities.SurplusMachines. The caller has listed the machines before, and an entry
// of the ledger is older than its machine, so the ledger has every listed machine of ours.
func (s *SurplusMachines) Record(ctx context.Context, provider string, listed []machine.Machine) (map[machine.SurplusClass]int, error) {
	return write(ctx, s.db, "storing the surplus machines of provider "+provider, func(ctx context.Context, tx *tx) (map[machine.SurplusClass]int, error) {
		if err := tx.LockSurplus(ctx, provider); err != nil {
			return nil, err
		}
		found, held, err := findSurplus(ctx, tx, provider, listed)
		if err != nil {
			return nil, err
		}
		counts, p := map[machine.SurplusClass]int{}, sqlc.StoreSurplusParams{Provider: provider, InstanceIds: []string{}}
		for _, id := range slices.Sorted(maps.Keys(found)) {
			l := found[id]
			counts[l.Class]++
			p.InstanceIds, p.ExternalIds, p.Hosts = append(p.InstanceIds, id), append(p.ExternalIds, l.ExternalID), append(p.Hosts, l.Host)
			p.Phases, p.Details, p.Classes = append(p.Phases, string(l.Phase)), append(p.Details, l.Detail), append(p.Classes, string(l.Class))
		}
		if err := tx.ForgetSurplus(ctx, provider, append(held, p.InstanceIds...)); err != nil {
			return counts, err
		}
		if err := tx.KeepSurplus(ctx, provider, held); err != nil || len(found) == 0 {
			return counts, err
		}
		return counts, tx.StoreSurplus(ctx, p)
	})
}

// findSurplus returns what no instance owns by instance ID: of two machines with one owner tag
// only the last. They end together, because a deletion is by owner tag. It also returns the
// duplicates of instances that own a machine. held are the instances that ended and whose node an
// operation holds: they are no new surplus, and the operation may release them, but those that are
// stored stay.
func findSurplus(ctx context.Context, tx *tx, provider string, listed []machine.Machine) (found map[string]machine.Surplus, held []string, err error) {
	found, ids, held := map[string]machine.Surplus{}, []string{}, []string{} // an empty list is no NULL
	for _, m := range listed {
		found[m.InstanceID] = machine.Surplus{Provider: provider, Machine: m, Class: machine.ClassOrphan}
		if schema.IsID(m.InstanceID) {
			ids = append(ids, m.InstanceID)
		}
	}
	live, err := tx.LiveInstances(ctx, provider, ids)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range live {
		delete(found, id)
	}
	entries, err := tx.MachineEntries(ctx, provider, ids, true)
	for _, e := range entries {
		l, seen := found[e.ResourceID]
		if e.Owned {
			delete(found, e.ResourceID)
			findDuplicate(found, provider, e, listed)
			continue
		}
		if e.Held {
			delete(found, e.ResourceID)
			held = append(held, e.ResourceID)
			continue
		}
		if !seen {
			l.Provider, l.Ref = provider, entryRef(e)
			l.Detail = "the provider does not list the machine of this open ledger entry"
		}
		l.Class, l.Host = machine.ClassLeftover, e.Host
		found[e.ResourceID] = l
	}
	return found, held, err
}

// findDuplicate adds the last listed machine that has the owner tag of an owned entry and is not the
// machine of the entry. An entry whose machine is being created does not have its ID yet.
func findDuplicate(found map[string]machine.Surplus, provider string, e sqlc.MachineEntriesRow, listed []machine.Machine) {
	own := text.Line(e.ExternalID, machine.MaxExternalID)
	for _, m := range listed {
		if m.InstanceID == e.ResourceID && own != "" && m.ExternalID != own {
			found[e.ResourceID] = machine.Surplus{Provider: provider, Machine: m, Class: machine.ClassDuplicate}
		}
	}
}

func entryRef(e sqlc.MachineEntriesRow) machine.Ref {
	return machine.Ref{InstanceID: e.ResourceID, ExternalID: e.ExternalID, Host: e.Host, Region: e.Region}
}

// Due implements activities.SurplusMachines.
func (s *SurplusMachines) Due(ctx context.Context, providers []string, limit int) ([]machine.Surplus, error) {
	rows, err := query(ctx, s.db, "reading the leftovers to delete", func(ctx context.Context) ([]sqlc.DueLeftoversRow, error) {
		if epoch, err := s.db.q.RestoreEpoch(ctx); err != nil || epoch > 0 {
			return nil, err
		}
		attempted, err := s.db.q.DeletionsAttempted(ctx, lifecycle.SweepTimeout.Seconds())
		if err != nil || attempted >= int64(limit) {
			return nil, err
		}
		return s.db.q.DueLeftovers(ctx, providers, machine.SurplusGrace.Seconds(), int32(limit-int(attempted)))
	})
	return convert(rows, func(r sqlc.DueLeftoversRow) machine.Surplus {
		return machine.Surplus{Provider: r.Provider, Class: r.Class, FirstSeen: r.FirstSeen.UTC(), Machine: machine.Machine{
			Ref:   machine.Ref{InstanceID: r.InstanceID, ExternalID: r.ExternalID, Host: r.Host},
			Phase: r.Phase, Detail: r.Detail}}
	}), err
}

// BeginDeletion implements activities.SurplusMachines. The first attempt writes an audit row.
func (s *SurplusMachines) BeginDeletion(ctx context.Context, l machine.Surplus) (r machine.Ref, begun bool, err error) {
	r, err = write(ctx, s.db, "beginning the deletion of machine "+l.InstanceID, func(ctx context.Context, tx *tx) (machine.Ref, error) {
		if on, err := tx.restoring(ctx); err != nil || on {
			return machine.Ref{}, err
		}
		e, err := lockEntry(ctx, tx, l)
		if err != nil || e.NodeID == "" || e.Owned || e.Held {
			return machine.Ref{}, err
		}
		stored, err := tx.LockLeftover(ctx, l.Provider, l.InstanceID, machine.SurplusGrace.Seconds())
		if err != nil {
			return machine.Ref{}, orMissing(err, nil)
		}
		if stored.AttemptedAt == nil {
			noteLeftover(tx, l, e, audit.ResourceReleased, audit.Accepted, string(machine.ClassLeftover))
		}
		if e, err = reopen(ctx, tx, l, e, stored.ExternalID); err != nil {
			return machine.Ref{}, err
		}
		return entryRef(e), tx.AttemptDeletion(ctx, l.Provider, l.InstanceID)
	})
	return r, r.InstanceID != "", err
}

// reopen records a machine that its provider listed although its entry does not have it: its
// creation ended after the operation that planned it. It returns the entry.
func reopen(ctx context.Context, tx *tx, l machine.Surplus, e sqlc.MachineEntriesRow, externalID string) (sqlc.MachineEntriesRow, error) {
	if e.State == activities.ResourceCreated || externalID == "" {
		return e, nil
	}
	e.State, e.ExternalID = activities.ResourceCreated, externalID
	noteLeftover(tx, l, e, audit.ResourceCreated, audit.Succeeded, lifecycle.ReasonOperationOver)
	return e, tx.CreatedResource(ctx, e.ResourceID, externalID)
}

// Deleted implements activities.SurplusMachines.
func (s *SurplusMachines) Deleted(ctx context.Context, l machine.Surplus) error {
	return s.db.write(ctx, "recording the deletion of machine "+l.InstanceID, func(ctx context.Context, tx *tx) error {
		e, err := lockEntry(ctx, tx, l)
		if err != nil {
			return err
		}
		if e.NodeID != "" && e.State != activities.ResourceReleased {
			noteLeftover(tx, l, e, audit.ResourceReleased, audit.Succeeded, string(machine.ClassLeftover))
			if err := tx.ReleasedResource(ctx, e.ResourceID); err != nil {
				return err
			}
		}
		return tx.LeftoverDeleted(ctx, l.Provider, l.InstanceID)
	})
}

// lockEntry locks the node of a leftover and returns the ledger entry, a zero one if there is
// none.
func lockEntry(ctx context.Context, tx *tx, l machine.Surplus) (e sqlc.MachineEntriesRow, err error) {
	if !schema.IsID(l.InstanceID) {
		return e, nil
	}
	entries, err := tx.MachineEntries(ctx, l.Provider, []string{l.InstanceID}, false)
	if err != nil || len(entries) == 0 {
		return e, err
	}
	if _, err = tx.lockNode(ctx, entries[0].NodeID); err != nil {
		return e, err
	}
	if entries, err = tx.MachineEntries(ctx, l.Provider, []string{l.InstanceID}, false); err != nil || len(entries) == 0 {
		return e, err
	}
	return entries[0], nil
}

func noteLeftover(tx *tx, l machine.Surplus, e sqlc.MachineEntriesRow, action, result, reason string) {
	tx.note(audit.Event{Stream: e.NodeID, Actor: systemActor, Action: action, Target: e.ResourceID, Result: result, Reason: reason,
		Detail: map[string]string{"kind": kindInstance, "provider": l.Provider, "external_id": cmp.Or(l.ExternalID, e.ExternalID)}})
}
