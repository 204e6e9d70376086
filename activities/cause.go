package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// UnexplainedPark is a parked operation without a stored probable cause.
type UnexplainedPark struct {
	OperationID string
	NodeID      string
	Host        string
	Provider    string
	// InstanceID, ExternalID and Region are those of the node's newest instance, empty without one.
	InstanceID string
	ExternalID string
	Region     string
}

// Causes reads evidence and stores probable causes. Errors are *schema.Error.
type Causes interface {
	// Unexplained returns parked operations whose park has no stored cause, the oldest park first.
	Unexplained(ctx context.Context, limit int) ([]UnexplainedPark, error)
	// Evidence returns what the database has about a node. KindNotFound.
	Evidence(ctx context.Context, nodeID string, lookback time.Duration) (cause.Evidence, error)
	// KeepCause stores the probable cause of a park. A second call replaces the first.
	KeepCause(ctx context.Context, r cause.Report) error
}

const (
	// maxExplained bounds the parks of a round: the next round explains more.
	maxExplained = 100
	// askTime bounds the question to a provider. A provider is asked once in a round: if it does not
	// answer for one machine, the others of the round share that answer.
	askTime = 5 * time.Second
)

// Explain has the activity that finds the probable causes of parks.
type Explain struct {
	Causes    Causes
	Providers map[string]Source // by name
	// Faults returns the faults of the control plane.
	Faults func(ctx context.Context) []cause.Fault
}

// ExplainSummary is the result of a round.
type ExplainSummary struct {
	// Explained is the number of parks, and Causes the number of each first candidate, "none" for
	// parks that nothing explains.
	Explained int            `json:"explained,omitempty"`
	Causes    map[string]int `json:"causes,omitempty"`
}

// ExplainParks finds the probable cause of each park that has none and stores it with the
// operation. It only reads, apart from that, so a second run finds what the first one left.
func (x *Explain) ExplainParks(ctx context.Context) (s ExplainSummary, err error) {
	parks, err := x.Causes.Unexplained(ctx, maxExplained)
	if err != nil || len(parks) == 0 {
		return s, Fail(err)
	}
	faults := x.Faults(ctx)
	silent := map[string]cause.Provider{}
	s.Causes = map[string]int{}
	for _, p := range parks {
		activity.RecordHeartbeat(ctx)
		e, err := x.Causes.Evidence(ctx, p.NodeID, cause.Lookback)
		if err != nil {
			return s, Fail(err)
		}
		if e.Park.OperationID != p.OperationID { // it left the park
			continue
		}
		e.Faults, e.FaultsRead = faults, true
		if e.Park.Reason == lifecycle.ReasonProviderSilent || e.Park.Reason == machine.ReasonUnavailable {
			x.ask(ctx, p, &e, silent)
		}
		report := cause.Explain(e)
		if err := x.Causes.KeepCause(ctx, report); err != nil {
			return s, Fail(err)
		}
		s.Explained++
		if report.TopCandidate == "" {
			report.TopCandidate = "none"
		}
		s.Causes[report.TopCandidate]++
	}
	return s, nil
}

// ask asks the provider for the machine, and notes its answer as evidence.
func (x *Explain) ask(ctx context.Context, p UnexplainedPark, e *cause.Evidence, silent map[string]cause.Provider) {
	source, ok := x.Providers[p.Provider]
	if !ok || p.InstanceID == "" {
		return
	}
	if known, asked := silent[p.Provider]; asked {
		e.Provider.Asked, e.Provider.Failed, e.Provider.Answer = true, true, known.Answer
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	m, err := source.Provider.Describe(ctx, machine.Ref{InstanceID: p.InstanceID, ExternalID: p.ExternalID, Host: p.Host, Region: p.Region})
	e.Provider.Asked = true
	switch f := schema.AsError(err); {
	case err == nil:
		e.Provider.Answer = "the machine is " + string(m.Phase)
	case f.Reason == machine.ReasonMissing:
		e.Provider.Answer = "it has no machine of the instance"
	default:
		e.Provider.Failed, e.Provider.Answer = true, f.Message
		if f.Kind == schema.KindServiceUnavailable || ctx.Err() != nil {
			silent[p.Provider] = e.Provider
		}
	}
}
