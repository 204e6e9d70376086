package temporal

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

const (
	// SampleOpen is how many open runs of each type Replay checks without AllOpen.
	SampleOpen = 100
	// replaysAtOnce bounds the histories in memory: one has at most 50 MB.
	replaysAtOnce = 8
	// maxUnchecked is the number of failed downloads after which Replay stops.
	maxUnchecked = 20
	// historyBudget bounds the download of one history.
	historyBudget = time.Minute
	// progressEvery is the interval between progress lines.
	progressEvery = 2 * time.Second
	// maxReason is the length of a reason, in runes.
	maxReason = 400
)

// ReplayOptions select the histories of Replay.
type ReplayOptions struct {
	// AllOpen checks every open run, otherwise the newest SampleOpen of each type.
	AllOpen bool
	// Closed is the number of closed runs of each type, newest first.
	Closed int
	// Progress receives a line every few seconds. Defaults to none.
	Progress io.Writer
}

// ReplayedRun is a run whose history was replayed, or could not be.
type ReplayedRun struct {
	WorkflowID string `json:"workflow_id"`
	RunID      string `json:"run_id"`
	// Type is the workflow's type name.
	Type   string `json:"type"`
	Open   bool   `json:"open"`
	Reason string `json:"reason,omitempty"`
}

// ReplayReport is the result of Replay.
type ReplayReport struct {
	// Build is the version of this program.
	Build string `json:"build"`
	// Open and Closed count the histories that replayed without a difference.
	Open   int `json:"open"`
	Closed int `json:"closed"`
	// Differing runs would not continue with this program's workflows.
	Differing []ReplayedRun `json:"differing"`
	// Unchecked are runs whose history could not be read.
	Unchecked []ReplayedRun `json:"unchecked"`
}

// OK reports whether every history was read and replayed.
func (r ReplayReport) OK() bool { return len(r.Differing)+len(r.Unchecked) == 0 }

// Replays downloads histories and replays them.
type Replays struct{ *connection }

// replay is one call of Replay.
type replay struct {
	*connection
	ReplayOptions
	workflows map[string]any
	replayer  worker.WorkflowReplayer
	total     int64

	mu     sync.Mutex
	report ReplayReport
	last   time.Time // of the last progress line
}

// Replay replays histories of the namespace with these workflows, by type name. It
// changes nothing. An error means that the runs could not be listed; a run whose
// history could not be read is in the report.
func (c Replays) Replay(ctx context.Context, workflows map[string]any, o ReplayOptions) (ReplayReport, error) {
	r, err := newReplay(c.connection, workflows, o)
	if err != nil {
		return ReplayReport{}, err
	}
	err = r.run(ctx)
	for _, list := range [][]ReplayedRun{r.report.Differing, r.report.Unchecked} {
		slices.SortFunc(list, func(a, b ReplayedRun) int { return strings.Compare(a.WorkflowID+a.RunID, b.WorkflowID+b.RunID) })
	}
	return r.report, err
}

func newReplay(c *connection, workflows map[string]any, o ReplayOptions) (*replay, error) {
	replayer, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{
		DataConverter: c.converter, DisableRegistrationAliasing: true,
	})
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "creating a replayer")
	}
	for name, fn := range workflows {
		replayer.RegisterWorkflowWithOptions(fn, workflow.RegisterOptions{Name: name})
	}
	return &replay{connection: c, ReplayOptions: o, workflows: workflows, replayer: replayer, last: time.Now(),
		report: ReplayReport{Differing: []ReplayedRun{}, Unchecked: []ReplayedRun{}}}, nil
}

// A selection is a visibility query and the number of runs to check, 0 for all.
type selection struct {
	query string
	limit int
}

func (r *replay) selections() (all []selection) {
	queue := fmt.Sprintf("TaskQueue = %q", lifecycle.TaskQueue)
	if r.AllOpen {
		all = append(all, selection{queue + " AND CloseTime IS NULL", 0})
	}
	for name := range r.workflows {
		if !r.AllOpen {
			all = append(all, selection{fmt.Sprintf("%s AND CloseTime IS NULL AND WorkflowType = %q", queue, name), SampleOpen})
		}
		if r.Closed > 0 {
			all = append(all, selection{fmt.Sprintf("%s AND CloseTime IS NOT NULL AND WorkflowType = %q", queue, name), r.Closed})
		}
	}
	return all
}

func (r *replay) run(ctx context.Context) error {
	all := r.selections()
	for _, s := range all {
		n, err := r.count(ctx, s)
		if err != nil {
			return err
		}
		r.total += n
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(replaysAtOnce)
	for _, s := range all {
		if err := r.each(ctx, s, func(run ReplayedRun) { group.Go(func() error { return r.check(ctx, run) }) }); err != nil {
			return cmp.Or(group.Wait(), err)
		}
	}
	return group.Wait()
}

func (r *replay) count(ctx context.Context, s selection) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	answer, err := r.sdk.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: s.query})
	if err != nil {
		return 0, r.interpret(err, "counting operations")
	}
	if s.limit > 0 {
		return min(answer.GetCount(), int64(s.limit)), nil
	}
	return answer.GetCount(), nil
}

// each calls use for each run of a selection, page by page.
func (r *replay) each(ctx context.Context, s selection, use func(ReplayedRun)) error {
	var token []byte
	for seen := 0; ; {
		page, cancel := context.WithTimeout(ctx, callBudget)
		infos, next, err := r.page(page, s.query, int32(min(max(s.limit, 0), visibilityPage)), token)
		cancel()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause // a download failed, or the caller canceled
			}
			return err
		}
		for _, e := range infos {
			if seen++; s.limit > 0 && seen > s.limit {
				return nil
			}
			use(ReplayedRun{WorkflowID: e.GetExecution().GetWorkflowId(), RunID: e.GetExecution().GetRunId(),
				Type: e.GetType().GetName(), Open: !closed(e.GetStatus())})
		}
		if token = next; len(token) == 0 {
			return nil
		}
	}
}

// check replays one run. It fails when too many histories could not be read.
func (r *replay) check(ctx context.Context, run ReplayedRun) error {
	h, err := r.history(ctx, run)
	if !run.Open && is[*serviceerror.NotFound](err) {
		return nil // its retention ended
	}
	if err != nil {
		run.Reason = reasonOf(r.interpret(err, "reading the history"))
		return r.unread(run, err)
	}
	err = r.replay(run, h)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		run.Reason = reasonOf(err)
		r.report.Differing = append(r.report.Differing, run)
	case run.Open:
		r.report.Open++
	default:
		r.report.Closed++
	}
	r.progress()
	return nil
}

func (r *replay) unread(run ReplayedRun, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Unchecked = append(r.report.Unchecked, run)
	if len(r.report.Unchecked) < maxUnchecked {
		return nil
	}
	return r.interpret(err, fmt.Sprintf("reading histories; %d could not be read", maxUnchecked))
}

func (r *replay) progress() {
	if r.Progress == nil || time.Since(r.last) < progressEvery {
		return
	}
	r.last = time.Now()
	fmt.Fprintf(r.Progress, "replayed %d of %d histories, %d differ\n",
		r.report.Open+r.report.Closed+len(r.report.Differing), r.total, len(r.report.Differing))
}

func (r *replay) history(ctx context.Context, run ReplayedRun) (*historypb.History, error) {
	ctx, cancel := context.WithTimeout(ctx, historyBudget)
	defer cancel()
	h := &historypb.History{}
	events := r.sdk.GetWorkflowHistory(ctx, run.WorkflowID, run.RunID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			return nil, err
		}
		h.Events = append(h.Events, e)
	}
	return h, nil
}

// replay returns the difference between a history and what the workflow does. A run
// without a completed workflow task has none.
func (r *replay) replay(run ReplayedRun, h *historypb.History) error {
	if _, known := r.workflows[run.Type]; !known {
		return schema.NewError(schema.KindInvalidRequest, "this version has no workflow %s", run.Type)
	}
	if len(completedTasks(h).GetEvents()) == 0 {
		return nil
	}
	return r.replayer.ReplayWorkflowHistoryWithOptions(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), completedTasks(h),
		worker.ReplayWorkflowHistoryOptions{OriginalExecution: workflow.Execution{ID: run.WorkflowID, RunID: run.RunID}})
}

// completedTasks returns the history up to the last event of a completed workflow task,
// without events if no task is completed. The SDK's replayer would take what the workflow
// does with a later event, for example a cancel request, for a difference, and would not
// compare the last completed task if a task is started after it.
func completedTasks(h *historypb.History) *historypb.History {
	end := len(h.GetEvents())
	for end > 0 && !ofCompletedTask(h.GetEvents()[end-1].GetEventType()) {
		end--
	}
	return &historypb.History{Events: h.GetEvents()[:end]}
}

// ofCompletedTask reports whether an event is the completion of a workflow task, or the
// record of one of its commands.
func ofCompletedTask(t enumspb.EventType) bool {
	switch t {
	case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
		enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
		enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
		enumspb.EVENT_TYPE_TIMER_STARTED,
		enumspb.EVENT_TYPE_TIMER_CANCELED,
		enumspb.EVENT_TYPE_MARKER_RECORDED,
		enumspb.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
		enumspb.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
		enumspb.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
		enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
		enumspb.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_REJECTED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED,
		enumspb.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUESTED:
		return true
	}
	return false
}

// failureMessage finds the message in the text of the SDK's replay error.
var failureMessage = regexp.MustCompile(`failure: message:"((?:[^"\\]|\\.)*)"`)

// reasonOf is the text of an error on one line.
func reasonOf(err error) string {
	message := err.Error()
	if m := failureMessage.FindStringSubmatch(message); m != nil {
		message = strings.ReplaceAll(m[1], `\"`, `"`)
	}
	short := []rune(strings.Join(strings.Fields(message), " "))
	return string(short[:min(len(short), maxReason)])
}
