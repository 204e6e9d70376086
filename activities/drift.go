package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Drifts compares nodes with their templates. Errors are *schema.Error.
type Drifts interface {
	// ScanDrift compares up to limit nodes in order of ID, after the ID after, "" for the first ones. It
	// stores each drift that changed, with a signal. A second call changes nothing.
	ScanDrift(ctx context.Context, after string, limit int) (DriftBatch, error)
	// DueRemedies returns the upgrades of agents to start: those whose start is not known, and new ones
	// as far as at most so many are open and at most so many nodes received the version and do not run it, of nodes
	// whose template has the policy template.PolicyProceed and that nothing else holds. The upgrade of a node to a version is
	// chosen once in an incarnation and keeps its operation ID; one that was refused, or whose operation did not claim
	// the node, is chosen again after an hour, with another ID. It returns none while a restore mode is on.
	DueRemedies(ctx context.Context, most int) ([]lifecycle.OperationInput, error)
	// RefuseRemedy records why an operation of DueRemedies was not accepted.
	RefuseRemedy(ctx context.Context, nodeID, operationID, why string) error
}

// DriftBatch is the result of comparing a batch of nodes.
type DriftBatch struct {
	// Nodes were compared; Drifted differ from their template, and the drift of Changed is another one than
	// before.
	Nodes   int `json:"nodes,omitempty"`
	Drifted int `json:"drifted,omitempty"`
	Changed int `json:"changed,omitempty"`
	// Next is the last node's ID if there are further nodes.
	Next string `json:"next,omitempty"`
}

const (
	// driftBatch is how many nodes one query reads. Between batches the activity sends a heartbeat, and each
	// node whose drift changed has a transaction.
	driftBatch = 100
	// MaxRemedies is how many upgrades that a policy started are open at a time, parked ones included, and
	// how many nodes may have received a version that they do not run.
	MaxRemedies = 5
)

// DriftScan has the activity that compares all nodes with their templates.
type DriftScan struct {
	Drifts  Drifts
	Starter Starter
}

// DriftSummary is the result of a round.
type DriftSummary struct {
	DriftBatch
	// Started and Refused are the operations that were accepted and rejected.
	Started []string `json:"started,omitempty"`
	Refused []string `json:"refused,omitempty"`
}

// ScanDrift compares all nodes with their templates and stores each drift that changed. Then it starts
// the upgrades that the policies of templates allow. Operation IDs are stored before the start, so
// that a second attempt attaches to the same operations. If a start fails for another reason than a
// rejection, ScanDrift starts the others and returns the error at the end; the next run tries it again.
func (s *DriftScan) ScanDrift(ctx context.Context) (sum DriftSummary, err error) {
	for more := true; more; {
		b, err := s.Drifts.ScanDrift(ctx, sum.Next, driftBatch)
		if err != nil {
			return DriftSummary{}, Fail(err)
		}
		sum.DriftBatch = DriftBatch{Nodes: sum.Nodes + b.Nodes, Drifted: sum.Drifted + b.Drifted, Changed: sum.Changed + b.Changed, Next: b.Next}
		more = b.Next != ""
		activity.RecordHeartbeat(ctx)
	}
	due, err := s.Drifts.DueRemedies(ctx, MaxRemedies)
	if err != nil {
		return DriftSummary{}, Fail(err)
	}
	sum.Started, sum.Refused, err = starts{s.Starter, "the upgrade of the agent", nil, func(ctx context.Context, in lifecycle.OperationInput, why string) error {
		return s.Drifts.RefuseRemedy(ctx, in.NodeID, in.OperationID, why)
	}}.all(ctx, due, time.Now().Add(lifecycle.RoundTry/2))
	if err != nil {
		return DriftSummary{}, err
	}
	return sum, nil
}
