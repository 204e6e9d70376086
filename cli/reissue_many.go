package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// reissueOutcome is the result of the reissue of one node.
type reissueOutcome string

const (
	reissuePlanned    reissueOutcome = "planned"     // --dry-run
	reissueRefused    reissueOutcome = "refused"     // --dry-run: it would be refused
	reissueDone       reissueOutcome = "done"        // the node polls with the new identity
	reissueWritten    reissueOutcome = "written"     // --no-wait: its bundle is written
	reissueWaiting    reissueOutcome = "waiting"     // the node has not claimed its token
	reissueFailed     reissueOutcome = "failed"      // refused or failed
	reissueNotStarted reissueOutcome = "not_started" // interrupted before its turn
)

// reissueRow is one node of the result.
type reissueRow struct {
	NodeID      string              `json:"node_id"`
	Host        string              `json:"host"`
	State       lifecycle.NodeState `json:"state"`
	Outcome     reissueOutcome      `json:"outcome"`
	OperationID string              `json:"operation_id,omitempty"`
	File        string              `json:"file,omitempty"`
	Reason      string              `json:"reason,omitempty"`
}

// reissueMany is a reissue of many nodes.
type reissueMany struct {
	env     *env
	control apiControl
	options nodeReissueOptions

	rows  []reissueRow // each is changed by its own goroutine
	ended atomic.Int64
	mu    sync.Mutex // orders the messages
}

func runNodeReissueMany(ctx context.Context, e *env, o nodeReissueOptions) error {
	m, err := e.selectReissues(ctx, o)
	if err != nil {
		return err
	}
	if o.dryRun {
		if err := m.print(); err != nil {
			return err
		}
		return e.nothingChanged(m.summary()[reissueRefused], "node")
	}
	what := fmt.Sprintf("reissue %s: their earlier tokens become void, and each needs its restart command", count(len(m.rows), "node"))
	if err := e.confirm(ctx, "gpuaas node reissue-enrollment", what, o.yes); err != nil {
		return err
	}
	if err := os.MkdirAll(o.outDir, 0o700); err != nil {
		return fmt.Errorf("creating %s: %w", o.outDir, err)
	}
	var group errgroup.Group
	group.SetLimit(o.maxParallel)
	for i := range m.rows {
		group.Go(func() error {
			if ctx.Err() == nil { // an interrupt starts no further reissue
				m.one(ctx, &m.rows[i])
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // each row has its own error
	if err := m.print(); err != nil {
		return err
	}
	summary := m.summary()
	if n := summary[reissueFailed]; n > 0 {
		return &exitError{schema.ExitFailed, []string{count(n, "reissue") + " failed"}}
	}
	if n := summary[reissueWaiting] + summary[reissueNotStarted]; n > 0 {
		return &exitError{schema.ExitPending, []string{count(n, "reissue") +
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
	m := &reissueMany{env: e, control: ctl, options: o}
	for _, n := range nodes {
		r := reissueRow{NodeID: n.ID, Host: n.Host, State: n.State, Outcome: reissueNotStarted}
		if o.dryRun {
			r.Outcome = reissuePlanned
			if _, err := lifecycle.CheckStart(lifecycle.ActionReissueEnrollment, n.State); err != nil {
				r.Outcome, r.Reason = reissueRefused, fillNode(err.Error(), n.Host)
			}
		}
		m.rows = append(m.rows, r)
	}
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
	case err != nil:
		r.Outcome, r.Reason = reissueFailed, t.inError(err).Error()
	case o.waits():
		r.File = path
		m.message(r.Host, "bundle written: "+path)
		st, err := m.env.follow(ctx, followRequest{target: t, operation: response.Operation, control: m.control, limit: o.timeout, quiet: true})
		r.followed(t, st.Operation, err)
	default:
		r.File = path
	}
	text := r.Outcome.words()
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	m.ended.Add(1)
	m.message(r.Host, text)
}

// followed sets the outcome after the wait.
func (r *reissueRow) followed(t target, op lifecycle.Operation, err error) {
	switch {
	case op.Status == lifecycle.OperationCompleted:
		r.Outcome = reissueDone
	case op.Status.Ended():
		r.Outcome, r.Reason = reissueFailed, op.Outcome
	case op.Stuck != nil:
		r.Outcome, r.Reason = reissueWaiting, op.Stuck.Message+"; next: "+nextCommand(t, op.Action, op.Stuck)
	default:
		r.Outcome, r.Reason = reissueWaiting, "follow it with: "+t.op("watch", op.Action)
		if err != nil {
			r.Reason = strings.SplitN(err.Error(), "\n", 2)[0] + "; " + r.Reason
		}
	}
}

// message prints the progress of one node.
func (m *reissueMany) message(host, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.env.message("[%d/%d] %s: %s", m.ended.Load(), len(m.rows), host, text)
}

func (o reissueOutcome) words() string { return strings.ReplaceAll(string(o), "_", " ") }

// summary is the number of nodes with each outcome.
func (m *reissueMany) summary() map[reissueOutcome]int {
	n := map[reissueOutcome]int{}
	for _, r := range m.rows {
		n[r.Outcome]++
	}
	return n
}

// print prints the rows and their summary. No row contains a secret.
func (m *reissueMany) print() error {
	summary, words := m.summary(), []string{}
	for _, o := range slices.Sorted(maps.Keys(summary)) {
		words = append(words, fmt.Sprintf("%d %s", summary[o], o.words()))
	}
	m.env.message("%s: %s", count(len(m.rows), "node"), strings.Join(words, ", "))
	return printList(m.env.console, listing[reissueRow]{
		object: map[string]any{"reissues": m.rows, "summary": summary}, rows: m.rows,
		header: []string{"NODE", "STATE", "OUTCOME", "REASON", "FILE", "OPERATION"}, wide: 1,
		cells: func(r reissueRow) []string {
			return []string{r.Host, string(r.State), string(r.Outcome), dash(r.Reason), dash(r.File), dash(r.OperationID)}
		},
		name: func(r reissueRow) string { return r.Host },
	})
}
