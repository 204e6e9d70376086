package server

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// faultBudget bounds the time to read the faults of the database.
const faultBudget = 3 * time.Second

// faultsFresh is how long the faults of Temporal serve further requests: Temporal limits
// the listings that it serves to 10 per second by default.
const faultsFresh = 5 * time.Second

// recentFaults are faults that were read a short time ago. It is safe for concurrent use.
type recentFaults struct {
	mu     sync.Mutex
	readAt time.Time
	faults []wire.ControlPlaneFault
}

// get returns the faults as last read, and reads them again if they are outdated.
func (f *recentFaults) get(read func() []wire.ControlPlaneFault) []wire.ControlPlaneFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.readAt) > faultsFresh {
		f.faults, f.readAt = read(), time.Now()
	}
	return f.faults
}

// faults are the control plane's faults for the list of what is stuck.
func (a *app) faults(r *http.Request) []wire.ControlPlaneFault {
	var stored []wire.ControlPlaneFault
	var reading sync.WaitGroup
	reading.Go(func() { stored = a.storedFaults(r.Context()) })
	out := a.probed.get(func() []wire.ControlPlaneFault { return a.temporal.Faults(context.WithoutCancel(r.Context())) })
	reading.Wait()
	out = withUnavailable(slices.Concat(out, stored), a.Health.Unavailable())
	if err := a.cfg.tokens.Fault(); err != nil {
		out = append(out, wire.ControlPlaneFault{Component: "admin-tokens", Reason: "not_loaded", Message: err.Error(),
			Next: "correct the file of GPUAAS_ADMIN_TOKENS_FILE"})
	}
	return out
}

func (a *app) storedFaults(ctx context.Context) []wire.ControlPlaneFault {
	ctx, cancel := context.WithTimeout(ctx, faultBudget)
	defer cancel()
	return slices.Concat(databaseFaults(ctx, a.store, a.Log), signerFault(a.sets.Healthy()), faultOf("clock", a.Clocks.Skew()),
		faultOf("vault-login", a.vault.SecretIDFault()), a.setFault(ctx))
}

// databaseFaults returns the faults that the database shows. An outage of the database is one fault: a
// rotation that cannot be read is one only if the stored faults could be read.
func databaseFaults(ctx context.Context, s *store.Store, log *slog.Logger) []wire.ControlPlaneFault {
	faults, err := s.Admin.Faults(ctx)
	if err != nil {
		faults = append(faults, unavailable("postgres", err))
	}
	lost, lostErr := s.Checkpoints.Faults(ctx)
	if lostErr != nil {
		log.Warn("cannot read the faults of the audit trail", slog.Any("err", lostErr))
	}
	open, openErr := openRotationFault(ctx, s.Rotations)
	if openErr != nil && err == nil { // the database may stop responding after the earlier reads
		open = append(open, unavailable("rotation", openErr))
	}
	return slices.Concat(faults, lost, open)
}

// faultOf returns the fault of a component with the error's reason, none without an error.
func faultOf(component string, err error) []wire.ControlPlaneFault {
	if err == nil {
		return nil
	}
	fault := unavailable(component, err)
	fault.Reason = schema.AsError(err).Reason
	return []wire.ControlPlaneFault{fault}
}

// signerFault returns the fault of the verifier sets: without a valid one no task is
// dispatched.
func signerFault(err error) []wire.ControlPlaneFault {
	if err == nil {
		return nil
	}
	return []wire.ControlPlaneFault{unavailable("task-signer", err)}
}

// unavailable is the fault of a component that does not respond: its reason is the error's kind.
func unavailable(component string, err error) wire.ControlPlaneFault {
	e := schema.AsError(err)
	return wire.ControlPlaneFault{Component: component, Reason: string(e.Kind), Message: e.Message, Next: e.Next}
}

// withUnavailable adds a fault for each dependency that the readiness check reports and
// that is not among the faults yet.
func withUnavailable(faults []wire.ControlPlaneFault, down map[string]error) []wire.ControlPlaneFault {
	for _, name := range slices.Sorted(maps.Keys(down)) {
		if slices.ContainsFunc(faults, func(f wire.ControlPlaneFault) bool { return f.Component == name }) {
			continue
		}
		faults = append(faults, unavailable(name, down[name]))
	}
	return faults
}
