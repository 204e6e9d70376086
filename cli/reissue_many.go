package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The outcomes of the reissue of one of many nodes.
const (
	reissueRefused    bulkOutcome = "refused"     // --dry-run: it would be refused
	reissueDone       bulkOutcome = "done"        // the node polls with the new identity
	reissueWritten    bulkOutcome = "written"     // --no-wait: its bundle is written
	reissueWaiting    bulkOutcome = "waiting"     // accepted: the node has not claimed its token, or the reissue has not begun
	reissueNotStarted bulkOutcome = "not_started" // interrupted before its turn
)

// reissueRow is one node of the result.
type reissueRow struct {
	NodeID      string              `json:"node_id"`
	Host        string              `json:"host"`
	State       lifecycle.NodeState `json:"state"`
	Outcome     bulkOutcome         `json:"outcome"`
	OperationID string              `json:"operation_id,omitempty"`
	File        string              `json:"file,omitempty"`
	Reason      string              `json:"reason,omitempty"`
}

func (r *reissueRow) name() string         { return r.Host }
func (r *reissueRow) outcome() bulkOutcome { return r.Outcome }

func (r *reissueRow) details() string {
	if r.Reason == "" {
		return ""
	}
	return ": " + r.Reason
}

// reissueMany is a reissue of many nodes.
type reissueMany struct {
	bulkRun[*reissueRow]
	control apiControl
	options nodeReissueOptions
}

func runNodeReissueMany(ctx context.Context, e *env, o nodeReissueOptions) error {
	m, err := e.selectReissues(ctx, o)
	if err != nil {
		return err
	}
	if !o.dryRun {
		what := fmt.Sprintf("reissue %s: their earlier tokens become void, and each needs its restart command", text.Count(len(m.rows), m.noun))
		if err := e.confirm(ctx, "gpuaas node reissue-enrollment", what, o.yes); err != nil {
			return err
		}
		if err := os.MkdirAll(o.outDir, 0o700); err != nil {
			return fmt.Errorf("creating %s: %w", o.outDir, err)
		}
		m.work(ctx, o.maxParallel, m.one)
	}
	summary, err := m.print()
	switch unfinished := summary[reissueWaiting] + summary[reissueNotStarted]; {
	case err != nil:
		return err
	case o.dryRun:
		return e.nothingChanged(summary[reissueRefused], m.noun)
	case summary[bulkFailed] > 0:
		return &exitError{schema.ExitFailed, []string{text.Count(summary[bulkFailed], "reissue") + " failed"}}
	case unfinished > 0:
		return &exitError{schema.ExitPending, []string{text.Count(unfinished, "reissue") +
			" not done yet; gpuaas node list shows the waiting nodes; run the command again for those not started"}}
	}
	return nil
}

// selectReissues finds the nodes that match the selector and are not removed.
func (e *env) selectReissues(ctx context.Context, o nodeReissueOptions) (*reissueMany, error) {
	ctl := e.apiControl()
	q := adminclient.ListNodesParams{Selector: given(strings.Join(o.selector, ","))}
	if len(o.issuer) > 0 {
		q.Issuer = &o.issuer
	}
	nodes, err := listNodes[wire.NodeView](ctx, ctl.Client, q, 0)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, schema.NewError(schema.KindNotFound, "no node matches %s", strings.Join(append(o.selector, o.issuer...), ",")).WithNext("gpuaas node list")
	}
	m := &reissueMany{bulkRun: bulkRun[*reissueRow]{env: e, noun: "node"}, control: ctl, options: o}
	for _, n := range nodes {
		r := &reissueRow{NodeID: n.ID, Host: n.Host, State: n.State, Outcome: reissueNotStarted}
		if o.dryRun {
			r.Outcome = bulkPlanned
			if _, err := lifecycle.CheckStart(lifecycle.ActionReissueEnrollment, n.State); err != nil {
				r.Outcome, r.Reason = reissueRefused, preview.Fill(err.Error(), n.Host)
			}
		}
		m.rows = append(m.rows, r)
	}
	m.chosen = m.rows
	return m, nil
}

// one reissues one node, waits for it if requested, and completes its row.
func (m *reissueMany) one(ctx context.Context, r *reissueRow) {
	t, o := target{id: r.NodeID, host: r.Host}, m.options.bundleOptions
	r.Outcome, r.Reason = reissueWritten, ""
	var response wire.LifecycleResponse
	path, err := fileOf(t, m.options.outDir, ".recovery.json", "reissue-enrollment "+t.id+" --bundle FILE")
	if o.bundle = path; err == nil {
		response, err = issue(ctx, m.control, t, lifecycle.ActionReissueEnrollment, o)
	}
	r.OperationID = response.Operation.OperationID
	switch {
	case errors.Is(err, &schema.Error{Kind: schema.KindOperationInProgress}):
		r.Outcome, r.Reason = reissueWaiting, "reissued before: "+t.inError(err).Error()
	case err != nil && lifecycle.StartAccepted(schema.AsError(err).Reason):
		r.Outcome, r.Reason = reissueWaiting, t.inError(err).Error()+"; its bundle was not received: when it runs, use gpuaas node bootstrap-script "+t.name()
	case err != nil:
		r.Outcome, r.Reason = bulkFailed, t.inError(err).Error()
	case o.waits():
		r.File = path
		m.progress(r, 0, "bundle written: "+path)
		st, err := m.env.follow(ctx, followRequest{target: t, operation: response.Operation, control: m.control, limit: o.timeout, quiet: true})
		r.followed(t, st.Operation, err)
	default:
		r.File = path
	}
}

// followed sets the outcome after the wait.
func (r *reissueRow) followed(t target, op lifecycle.Operation, err error) {
	switch {
	case op.Status == lifecycle.OperationCompleted:
		r.Outcome = reissueDone
	case op.Status.Ended():
		r.Outcome, r.Reason = bulkFailed, op.Outcome
	case op.Stuck != nil:
		r.Outcome, r.Reason = reissueWaiting, op.Stuck.Message+"; next: "+nextCommand(t, op.Action, op.Stuck)
	default:
		r.Outcome, r.Reason = reissueWaiting, "follow it with: "+t.op("watch", op.Action)
		if err != nil {
			r.Reason = strings.SplitN(err.Error(), "\n", 2)[0] + "; " + r.Reason
		}
	}
}

// print prints the rows and returns the number of those with each outcome. No row
// contains a secret.
func (m *reissueMany) print() (map[bulkOutcome]int, error) {
	return m.bulkRun.print(map[string]any{"reissues": m.rows}, listing[*reissueRow]{
		header: []string{"NODE", "STATE", "OUTCOME", "REASON", "FILE", "OPERATION"}, wide: 1,
		cells: func(r *reissueRow) []string {
			return []string{r.Host, string(r.State), r.Outcome.words(), dash(r.Reason), dash(r.File), dash(r.OperationID)}
		},
		name: (*reissueRow).name,
	})
}
