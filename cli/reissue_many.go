package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// reissueOutcome is how far one node of a selector came.
type reissueOutcome string

const (
	reissuePlanned    reissueOutcome = "planned"     // --dry-run
	reissueRefused    reissueOutcome = "refused"     // --dry-run: it would be
	reissueDone       reissueOutcome = "done"        // it polls with the new identity
	reissueHandedOut  reissueOutcome = "handed_out"  // its bundle is written; nobody waits
	reissueWaiting    reissueOutcome = "waiting"     // still waited for
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

// reissueMany is a reissue of many nodes under way.
type reissueMany struct {
	env     *env
	api     *adminAPI
	control control
	options nodeReissueOptions
	targets []target

	mu    sync.Mutex // guards what follows and the talk
	rows  []reissueRow
	ended int
}

func runNodeReissueMany(ctx context.Context, e *env, o nodeReissueOptions) error {
	m, err := e.selectReissues(ctx, o)
	if err != nil {
		return err
	}
	if o.dryRun {
		return m.printPlan()
	}
	what := fmt.Sprintf("reissue %s: their earlier tokens become void, and each needs its restart command", count(len(m.targets), "node"))
	if err := e.ask(ctx, "gpuaas node reissue-enrollment", what, o.yes); err != nil {
		return err
	}
	if err := os.MkdirAll(o.outDir, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", o.outDir, err)
	}
	m.run(ctx)
	if err := m.print(); err != nil {
		return err
	}
	return m.outcome()
}

// printPlan prints what would be reissued. As of one node, a refusal is an exit
// code of its own.
func (m *reissueMany) printPlan() error {
	if err := m.print(); err != nil {
		return err
	}
	if n := m.count(reissueRefused); n > 0 {
		return &exitError{schema.ExitRefused, []string{count(n, "node") + " would be refused; nothing was changed"}}
	}
	m.env.say("nothing was changed")
	return nil
}

// selectReissues finds the nodes that match the selector and are not removed.
func (e *env) selectReissues(ctx context.Context, o nodeReissueOptions) (*reissueMany, error) {
	api, err := e.api()
	if err != nil {
		return nil, err
	}
	q := nodeListOptions{selector: strings.Join(o.selector, ",")}.query()
	q.Issuer = several(o.issuer)
	nodes, err := api.nodes(ctx, q, 0)
	if err != nil {
		return nil, err
	}
	m := &reissueMany{env: e, api: api, control: apiControl{api}, options: o}
	for _, n := range nodes {
		m.targets = append(m.targets, target{id: n.ID, host: n.Host, view: &n})
		r := reissueRow{NodeID: n.ID, Host: n.Host, State: n.State, Outcome: reissueNotStarted}
		if o.dryRun {
			r.Outcome = reissuePlanned
			if _, err := lifecycle.CheckStart(lifecycle.ActionReissueEnrollment, n.State); err != nil {
				r.Outcome, r.Reason = reissueRefused, fillNode(err.Error(), n.Host)
			}
		}
		m.rows = append(m.rows, r)
	}
	if len(m.targets) == 0 {
		return nil, schema.NewError(schema.KindNotFound, "no node matches %s", strings.Join(append(o.selector, o.issuer...), ",")).WithNext("gpuaas node list")
	}
	return m, nil
}

// run reissues the nodes, so many at a time. An interrupt lets no further one
// start and ends the waiting.
func (m *reissueMany) run(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(m.options.maxParallel)
	for i := range m.targets {
		group.Go(func() error {
			if ctx.Err() == nil {
				m.one(ctx, i)
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // each row has its own error
}

// one reissues one node and waits for it if asked to.
func (m *reissueMany) one(ctx context.Context, i int) {
	t := m.targets[i]
	row := m.rows[i]
	path, err := m.path(t)
	if err != nil {
		m.end(i, row.failed(err))
		return
	}
	answer, err := m.env.reissue(ctx, m.api, t, m.options, path)
	row.OperationID = answer.Operation.OperationID
	switch {
	case errors.Is(err, &schema.Error{Kind: schema.KindOperationInProgress}):
		row.Outcome, row.Reason = reissueWaiting, "reissued before: "+t.inWords(err).Error()
		m.end(i, row)
		return
	case err != nil:
		m.end(i, row.failed(t.inWords(err)))
		return
	}
	row.File, row.Outcome = path, reissueHandedOut
	if !m.options.waits() {
		m.end(i, row)
		return
	}
	m.talk(t, "handed out: "+path)
	st, err := m.env.follow(ctx, followRequest{target: t, operation: answer.Operation, control: m.control, limit: m.options.timeout, quiet: true})
	m.end(i, row.followed(t, st.Operation, err))
}

func (m *reissueMany) path(t target) (string, error) {
	name := t.name() + ".recovery.json"
	if strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
		return "", schema.Errorf(schema.KindInvalidRequest, "the host name %q does not make a file name: reissue it alone with --bundle FILE", t.name())
	}
	return filepath.Join(m.options.outDir, name), nil
}

func (r reissueRow) failed(err error) reissueRow {
	r.Outcome, r.Reason = reissueFailed, err.Error()
	return r
}

// followed is the row after the waiting.
func (r reissueRow) followed(t target, op lifecycle.Operation, err error) reissueRow {
	switch {
	case op.Status == lifecycle.OperationCompleted:
		r.Outcome = reissueDone
	case op.Status.Ended():
		r.Outcome, r.Reason = reissueFailed, op.Outcome
	case op.Stuck != nil:
		r.Outcome, r.Reason = reissueWaiting, op.Stuck.Message+"; next: "+nextCommand(t, op)
	default:
		r.Outcome, r.Reason = reissueWaiting, "follow it with: "+lifecycle.OpCommand("watch", op.Action, t.name())
		if err != nil {
			r.Reason = strings.SplitN(err.Error(), "\n", 2)[0] + "; " + r.Reason
		}
	}
	return r
}

// end keeps a node's result and tells of it.
func (m *reissueMany) end(i int, row reissueRow) {
	m.mu.Lock()
	m.rows[i] = row
	m.ended++
	m.mu.Unlock()
	text := strings.ReplaceAll(string(row.Outcome), "_", " ")
	if row.Reason != "" {
		text += ": " + row.Reason
	}
	m.talk(m.targets[i], text)
}

func (m *reissueMany) talk(t target, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.env.say("[%d/%d] %s: %s", m.ended, len(m.rows), t.name(), text)
}

func (m *reissueMany) count(outcomes ...reissueOutcome) (n int) {
	for _, r := range m.rows {
		for _, o := range outcomes {
			if r.Outcome == o {
				n++
			}
		}
	}
	return n
}

// print prints the rows and how many came how far. No row holds a secret.
func (m *reissueMany) print() error {
	summary := map[reissueOutcome]int{}
	var words []string
	for _, o := range []reissueOutcome{reissuePlanned, reissueRefused, reissueDone, reissueHandedOut, reissueWaiting, reissueFailed, reissueNotStarted} {
		if n := m.count(o); n > 0 {
			summary[o] = n
			words = append(words, fmt.Sprintf("%d %s", n, strings.ReplaceAll(string(o), "_", " ")))
		}
	}
	m.env.say("%s: %s", count(len(m.rows), "node"), strings.Join(words, ", "))
	return m.env.print(map[string]any{"reissues": m.rows, "summary": summary}, func(w io.Writer) {
		row(w, "NODE", "STATE", "OUTCOME", "REASON", "FILE")
		for _, r := range m.rows {
			row(w, r.Host, string(r.State), string(r.Outcome), dash(r.Reason), dash(r.File))
		}
	})
}

func (m *reissueMany) outcome() error {
	if n := m.count(reissueFailed); n > 0 {
		return &exitError{schema.ExitFailed, []string{fmt.Sprintf("%s failed", count(n, "reissue"))}}
	}
	if n := m.count(reissueWaiting, reissueNotStarted); n > 0 {
		return &exitError{schema.ExitPending, []string{
			fmt.Sprintf("%s not done yet; gpuaas node list shows what waits; run it again for those not started", count(n, "reissue"))}}
	}
	return nil
}
