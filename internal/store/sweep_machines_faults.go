package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// leftoverFaults reports the machines that no instance has owned for machine.LeftoverGrace: one
// fault for each provider and class.
func leftoverFaults(ctx context.Context, db *db) (faults []wire.ControlPlaneFault, err error) {
	rows, err := query(ctx, db, "reading the leftovers of providers", func(ctx context.Context) ([]sqlc.LeftoverFaultsRow, error) {
		return db.q.LeftoverFaults(ctx, machine.LeftoverGrace.Seconds())
	})
	for _, r := range rows {
		oldest := strings.Join(r.Oldest, ", ")
		if int(r.Machines) > len(r.Oldest) {
			oldest += ", …"
		}
		f := wire.ControlPlaneFault{Component: "machine-leftover", Reason: string(r.Class), Message: fmt.Sprintf(
			"provider %s has %s that no instance owns, the oldest for %s: %s", r.Provider, text.Count(int(r.Machines), "machine"),
			lifecycle.Span(time.Duration(r.OldestSeconds*float64(time.Second))), oldest)}
		f.Next = "to have the workers delete them, set GPUAAS_SWEEP=delete; otherwise delete them at the provider"
		if r.Class == machine.ClassOrphan {
			f.Message += "; the ledger does not have them"
			f.Next = "find out which database owns them, for example the one from before a restore; if none does, delete them at the provider"
		}
		faults = append(faults, f)
	}
	return faults, err
}
