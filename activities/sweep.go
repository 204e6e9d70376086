package activities

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// SurplusMachines stores the surplus machines of providers. Errors are *schema.Error.
type SurplusMachines interface {
	// Record compares all machines of a provider with the ledger. It stores those that no
	// instance owns, and the open entries of the ledger without an owner whose machine is not
	// among them, and forgets the provider's other ones. While an operation holds the node of an
	// instance that ended, Record keeps what it stored of the instance and stores nothing new. It
	// returns how many it stored by class.
	// A second call changes only the time of the last sight.
	Record(ctx context.Context, provider string, listed []machine.Machine) (map[machine.SurplusClass]int, error)
	// Due returns up to limit leftovers of the providers that are older than machine.SurplusGrace and
	// whose nodes no operation holds, those that were not attempted before first. The deletions of the last
	// lifecycle.SweepTimeout count toward the limit, so that it holds for all attempts of a run
	// and for two workers. It returns none while a restore mode is on.
	Due(ctx context.Context, providers []string, limit int) ([]machine.Surplus, error)
	// BeginDeletion locks the node of a leftover and checks again that no instance owns it and
	// that no restore mode is on. It records the attempt and opens an entry that was released
	// before. It returns the machine to delete, and false if the machine must stay. An instance
	// that ended never lives again, so the answer stays true during the deletion.
	BeginDeletion(ctx context.Context, l machine.Surplus) (r machine.Ref, begun bool, err error)
	// Deleted records that the provider has no machine of the leftover: its entry is released.
	// A second call changes nothing.
	Deleted(ctx context.Context, l machine.Surplus) error
}

// maxDeletions is how many deletions a round begins.
const maxDeletions = 10

// Limits of what the sweep stores of a provider's list, in characters.
const (
	maxOwnerTag = 64
	maxHost     = 253
)

// Sweep has the activity that finds machines that no instance owns.
type Sweep struct {
	Surplus SurplusMachines
	// Providers are those of this worker by name. The sweep uses the enabled ones that create
	// machines.
	Providers map[string]Source
	// Deletes is set if leftovers are deleted; otherwise they are only reported.
	Deletes bool
}

// SweepSummary is the result of a round.
type SweepSummary struct {
	// Machines is the number of machines that the providers listed.
	Machines int `json:"machines,omitempty"`
	// Found are the numbers of machines that no instance owns, by class.
	Found map[machine.SurplusClass]int `json:"found,omitempty"`
	// Deleted are the instance IDs of the machines that the round deleted, and Deleting is the
	// number of those that their provider is still deleting.
	Deleted  []string `json:"deleted,omitempty"`
	Deleting int      `json:"deleting,omitempty"`
}

// sweepRound is one run of the activity.
type sweepRound struct {
	*Sweep
	SweepSummary
	listed []string // the providers
	failed error    // the first failure of a provider
	until  time.Time
}

// SweepMachines compares the machines of every provider with the ledger, stores those that no
// instance owns, and deletes leftovers if it is configured to. It never deletes an orphan or a
// duplicate. A machine counts as deleted once its provider has none with its owner tag.
//
// If a provider fails, SweepMachines continues with the other machines and returns the error at the
// end. An error of the database ends the attempt. A second attempt lists and compares again; what
// is deleted stays so.
func (s *Sweep) SweepMachines(ctx context.Context) (SweepSummary, error) {
	r := sweepRound{Sweep: s, SweepSummary: SweepSummary{Found: map[machine.SurplusClass]int{}}, until: time.Now().Add(lifecycle.SweepTry * 2 / 3)}
	for _, source := range s.sources() {
		if err := r.compare(ctx, source); err != nil {
			return SweepSummary{}, Fail(err)
		}
	}
	if s.Deletes {
		if err := r.deleteDue(ctx); err != nil {
			return SweepSummary{}, Fail(err)
		}
	}
	if r.failed != nil {
		// All other machines are decided. A retry would hide the failed one.
		return SweepSummary{}, Failure(schema.AsError(r.failed), true)
	}
	return r.SweepSummary, nil
}

// sources returns the enabled providers that create machines, by name.
func (s *Sweep) sources() []Source {
	var all []Source
	for _, source := range s.Providers {
		if source.Creates && source.Disabled == "" {
			all = append(all, source)
		}
	}
	slices.SortFunc(all, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// compare lists the machines of a provider and stores those that no instance owns. It returns only
// errors of the database.
func (r *sweepRound) compare(ctx context.Context, source Source) error {
	listed, err := listMachines(ctx, source.Provider)
	if err != nil {
		r.fail(err, "listing the machines of provider "+source.Name)
		return ctx.Err()
	}
	found, err := r.Surplus.Record(ctx, source.Name, listed)
	for class, n := range found {
		r.Found[class] += n
	}
	r.Machines += len(listed)
	r.listed = append(r.listed, source.Name)
	return cmp.Or(err, ctx.Err())
}

// fail keeps the first error of a provider.
func (r *sweepRound) fail(err error, doing string) {
	e := schema.AsError(err)
	r.failed = cmp.Or(r.failed, error(schema.NewError(e.Kind, "%s: %s", doing, e.Message).WithReason(e.Reason).WithNext(nextRound(e))))
}

// nextRound is the next step after a provider's error, which names the retry of an operation: a
// sweep has none, and its next run asks the provider again.
func nextRound(e *schema.Error) string {
	const again = "the next run of " + lifecycle.ScheduleSweep + " tries again"
	do, _, found := strings.Cut(e.Next, ", then retry")
	switch {
	case found:
		return do + "; " + again
	case e.Kind.Info().Retry || e.Reason == machine.ReasonCapacity:
		return "wait: " + again
	}
	return "check the machines at the provider, and delete there what must go; " + again
}

// deleteDue deletes the leftovers of the listed providers that are due, until the time is over. It
// returns only errors of the database.
func (r *sweepRound) deleteDue(ctx context.Context) error {
	due, err := r.Surplus.Due(ctx, r.listed, maxDeletions)
	for _, l := range due {
		if ctx.Err() != nil || time.Now().After(r.until) {
			break
		}
		if err := r.deleteLeftover(ctx, l); err != nil {
			return err
		}
	}
	return cmp.Or(err, ctx.Err())
}

func (r *sweepRound) deleteLeftover(ctx context.Context, l machine.Surplus) error {
	ref, begun, err := r.Surplus.BeginDeletion(ctx, l)
	if err != nil || !begun {
		return err
	}
	call, done := uncanceled(ctx)
	defer done()
	switch err := deleteMachine(call, r.Providers[l.Provider].Provider, ref); {
	case machine.Is(err, machine.ReasonDeleting):
		r.Deleting++ // the next round continues
	case err != nil:
		r.fail(err, "deleting the machine of instance "+l.InstanceID+" at provider "+l.Provider)
	default:
		r.Deleted = append(r.Deleted, l.InstanceID)
		return r.Surplus.Deleted(ctx, l)
	}
	return nil
}

// listMachines returns the machines of a provider with bounded texts.
func listMachines(ctx context.Context, p MachineProvider) ([]machine.Machine, error) {
	ctx, done := uncanceled(ctx)
	defer done()
	listed, err := p.List(ctx)
	var bounded []machine.Machine
	for _, m := range listed {
		m.InstanceID, m.ExternalID = text.Line(m.InstanceID, maxOwnerTag), text.Line(m.ExternalID, machine.MaxExternalID)
		m.Host, m.Detail = text.Line(m.Host, maxHost), text.Line(m.Detail, maxDetail)
		if !slices.Contains(machine.Phases(), m.Phase) {
			m.Phase = machine.Failed
		}
		bounded = append(bounded, m)
	}
	return bounded, err
}
