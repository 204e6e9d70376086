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

// surplusFaults reports the machines that have had their class for machine.SurplusGrace: one
// fault for each provider and class.
func surplusFaults(ctx context.Context, db *db) ([]wire.ControlPlaneFault, error) {
	rows, err := query(ctx, db, "reading the surplus machines of providers", func(ctx context.Context) ([]sqlc.SurplusFaultsRow, error) {
		return db.q.SurplusFaults(ctx, machine.SurplusGrace.Seconds())
	})
	return convert(rows, surplusFault), err
}

func surplusFault(r sqlc.SurplusFaultsRow) wire.ControlPlaneFault {
	what, also := "that no instance owns", ""
	var next string
	switch {
	case r.Class == machine.ClassOrphan:
		also = "; the ledger does not have them"
		next = "find out which database owns them, for example the one from before a restore; if none does, delete them at the provider"
	case r.Class == machine.ClassDuplicate:
		what = "with the owner tag of an instance whose machine is another one in the ledger"
		next = "gpuaas instance show INSTANCE has the ID of the instance's machine; find out which of the two the node answers from, and delete the other one at the provider"
	case r.Attempted > 0:
		also = fmt.Sprintf("; %d of them were to be deleted, the last one %s ago, and the provider has not confirmed it", r.Attempted, span(r.AttemptedSeconds))
		next = "if gpuaas stuck has a fault of " + lifecycle.ScheduleSweep + ", correct what the provider's answer in it says; otherwise look for the machines at the provider, and delete them there if it is not deleting them"
	default:
		next = "to have the workers delete them, set GPUAAS_SWEEP=delete; otherwise delete them at the provider"
	}
	oldest := strings.Join(r.Oldest, ", ")
	if int(r.Machines) > len(r.Oldest) {
		oldest += ", …"
	}
	return wire.ControlPlaneFault{Component: "surplus-machine", Reason: string(r.Class), Next: next, Message: fmt.Sprintf(
		"provider %s has %s %s, the oldest for %s: %s%s", r.Provider, text.Count(int(r.Machines), "machine"), what, span(r.OldestSeconds), oldest, also)}
}

func span(seconds float64) string {
	return lifecycle.Span(time.Duration(seconds * float64(time.Second)))
}
