package activities_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// drifts are batches by the ID before them, and operations to start.
type drifts struct {
	batches map[string]activities.DriftBatch
	due     []lifecycle.OperationInput
	most    int
	refused map[string]string // by operation
}

func (d *drifts) ScanDrift(_ context.Context, after string, _ int) (activities.DriftBatch, error) {
	b, ok := d.batches[after]
	if !ok {
		return b, schema.NewError(schema.KindServiceUnavailable, "the database is unavailable")
	}
	return b, nil
}

func (d *drifts) DueRemedies(_ context.Context, most int) ([]lifecycle.OperationInput, error) {
	d.most = most
	return d.due, nil
}

func (d *drifts) RefuseRemedy(_ context.Context, _, operationID, why string) error {
	d.refused[operationID] = why
	return nil
}

// answers are the errors of starts by operation.
type answers struct {
	errs  map[string]error
	tried []string
}

func (s *answers) Submit(_ context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	s.tried = append(s.tried, in.OperationID)
	return lifecycle.Operation{OperationID: in.OperationID}, s.errs[in.OperationID]
}

func scanDrift(t *testing.T, d *drifts, s *answers) (sum activities.DriftSummary, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	scan := &activities.DriftScan{Drifts: d, Starter: s}
	env.RegisterActivity(scan)
	v, err := env.ExecuteActivity(scan.ScanDrift)
	if err == nil {
		require.NoError(t, v.Get(&sum))
	}
	return sum, err
}

func TestScanDrift(t *testing.T) {
	t.Parallel()
	d := &drifts{batches: map[string]activities.DriftBatch{"": {Nodes: 500, Drifted: 3, Changed: 2, Next: "n1"}, "n1": {Nodes: 7, Drifted: 1}},
		due: []lifecycle.OperationInput{{OperationID: "a", NodeID: "1"}, {OperationID: "b", NodeID: "2"}, {OperationID: "c", NodeID: "3"}}, refused: map[string]string{}}
	s := &answers{errs: map[string]error{"b": schema.NewError(schema.KindOperationInProgress, "drain is in progress")}}
	sum, err := scanDrift(t, d, s)
	require.NoError(t, err)
	require.Equal(t, activities.DriftSummary{DriftBatch: activities.DriftBatch{Nodes: 507, Drifted: 4, Changed: 2}, Started: []string{"a", "c"}, Refused: []string{"b"}}, sum)
	require.Equal(t, map[string]string{"b": "drain is in progress"}, d.refused)
	require.Equal(t, activities.MaxRemedies, d.most)
}

// A start that may succeed later is not recorded as refused, and the others are started.
func TestScanDriftWithoutTemporal(t *testing.T) {
	t.Parallel()
	d := &drifts{batches: map[string]activities.DriftBatch{"": {Nodes: 1}}, due: []lifecycle.OperationInput{{OperationID: "a", Host: "gpu-1"}, {OperationID: "b"}},
		refused: map[string]string{}}
	s := &answers{errs: map[string]error{"a": schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond")}}
	_, err := scanDrift(t, d, s)
	require.ErrorContains(t, err, "starting the upgrade of the agent of node gpu-1: Temporal does not respond")
	require.Equal(t, []string{"a", "b"}, s.tried)
	require.Empty(t, d.refused)

	_, err = scanDrift(t, &drifts{}, s)
	require.Equal(t, schema.KindServiceUnavailable, activities.Typed(err).Kind)
}
