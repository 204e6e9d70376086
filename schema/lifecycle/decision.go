package lifecycle

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Stuck describes why an operation is parked and the decisions that resolve it.
type Stuck struct {
	Phase     string    `json:"phase"`
	WaitingOn Attention `json:"waiting_on"`
	// Reason is a stable code, for example drain_blocked.
	Reason string `json:"reason"`
	// Message describes the failure in a sentence.
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
	// Cause is the likely cause. Next is the command of the first option, or the one that must
	// come before it.
	Cause string `json:"cause"`
	Next  string `json:"next"`
	// Options are the decisions that are possible now, the least harmful first.
	Options []Option `json:"options,omitempty"`
	// Retrying is set while the worker retries the phase without a decision: the operation
	// continues when that succeeds. nil means that a person must act.
	Retrying *Retrying `json:"retrying,omitempty"`
}

// A parked operation retries its phase in the background after a pause that doubles from
// RetryPause to MaxRetryPause.
const (
	RetryPause    = time.Minute
	MaxRetryPause = 10 * time.Minute
)

// Retrying describes how a parked operation retries its phase in the background. Only
// the status query has its newest values; the database has those of the park.
type Retrying struct {
	// Tries counts the retries since the operation parked.
	Tries int `json:"tries"`
	// NextAt is when the next retry starts. nil means that one runs.
	NextAt *time.Time `json:"next_at,omitempty"`
}

// Option is a decision that is possible in a phase.
type Option struct {
	Decision Decision `json:"decision"`
	// Command is the exact command to type. In a parked operation it names the operation.
	// In a plan it is empty, or a command with NODE for the node's name that the resolve
	// update does not accept.
	Command string `json:"command"`
	// Does describes the effect of the decision in this phase, without a period.
	Does string `json:"does"`
	Harm Harm   `json:"harm"`
}

// Harm is the worst damage that a decision may cause.
type Harm string

// The harms, least first.
const (
	HarmNone  Harm = "none"  // nothing is lost
	HarmWork  Harm = "work"  // workloads on the node may be killed
	HarmFinal Harm = "final" // it cannot be undone
)

// rank orders harms, least first.
func (h Harm) rank() int {
	return slices.Index([]Harm{HarmNone, HarmWork, HarmFinal}, h)
}

// Decision is an operator's decision about a parked or running operation.
type Decision string

// The decisions. Retry runs the phase again. Skip continues without the phase.
// Force runs the phase without its safety check. Cancel undoes the phases that were
// attempted and restores the state at the start. Extend drains again with the whole time
// limit, when workloads blocked a drain.
const (
	DecisionRetry  Decision = "retry"
	DecisionSkip   Decision = "skip"
	DecisionForce  Decision = "force"
	DecisionCancel Decision = "cancel"
	DecisionExtend Decision = "extend"

	// DecisionResume makes a lost task pending again. It is a decision about the
	// task: the task endpoints accept it, the resolve update does not.
	DecisionResume Decision = "resume"

	// DecisionBootstrap issues another bootstrap bundle for a node that enrolls. It is a
	// command about the node: the resolve update does not accept it.
	DecisionBootstrap Decision = "bootstrap-script"
)

// Decisions returns every decision that the resolve update accepts.
func Decisions() []Decision {
	return []Decision{DecisionRetry, DecisionSkip, DecisionForce, DecisionCancel, DecisionExtend}
}

// ReasonPlaceholder is the placeholder of the reason in a printed command. It is
// rejected as a reason, so that an operator who pastes the command cannot record it.
const ReasonPlaceholder = "TEXT"

// NamePlaceholder is the placeholder of the name in the printed input of a decision. It is
// rejected as a name.
const NamePlaceholder = "YOUR NAME"

// ActorTemporal is the actor of a cancel in the Web UI, which does not say who canceled.
const ActorTemporal = "temporal"

// ReasonCancelStored is the reason of the error with which a cancel returns if no worker
// responded: Temporal stored it, and the operation is canceled as soon as a worker is up.
const ReasonCancelStored = "cancel_stored"

// ReasonDecisionAccepted is the reason of the error with which a decision returns if the
// operation accepted it and has not applied it: it applies when the database is available.
const ReasonDecisionAccepted = "decision_accepted"

// ResolveRequest is the argument of the resolve update.
type ResolveRequest struct {
	// ID identifies the decision: a run takes a decision with the same ID once. An
	// empty ID is a new decision.
	ID string `json:"id,omitempty"`
	// OperationID, Phase and StuckSince address the decision. If they do
	// not match, the decision is rejected with schema.KindDecisionOutdated. An empty field is
	// not compared; a decision that may cause damage needs OperationID (address_missing).
	OperationID string     `json:"operation_id,omitempty"`
	Phase       string     `json:"phase,omitempty"`
	StuckSince  *time.Time `json:"stuck_since,omitempty"`
	// RunID addresses a force or a skip to the run that it was sent to, or to the one that
	// continues it: a reset applies the decisions after its point again. Empty is not
	// compared.
	RunID    string   `json:"run_id,omitempty"`
	Decision Decision `json:"decision"`
	// Reason is required and is kept in the audit trail.
	Reason string `json:"reason"`
	By     string `json:"by"`
	// Via is the interface of the decision: "api" or "temporal".
	Via string `json:"via,omitempty"`
}

// JSON returns the request as a person sends it in the Web UI.
func (r ResolveRequest) JSON() string {
	raw, err := json.Marshal(r)
	if err != nil { // the year of StuckSince has more than four digits
		return ""
	}
	return string(raw)
}

// Resolution is the response to the resolve update: the status after the decision,
// and the decision itself, so that a client notices that its ID belongs to another one.
type Resolution struct {
	OperationStatus
	Request ResolveRequest `json:"request"`
}

// OpCommand is the command line that works on a node's operation, for example
// gpuaas op show gpu-17. A reissue does not hold its node, so its commands have
// the --reissue flag.
func OpCommand(verb string, a Action, node string) string { return opCommand("gpuaas", verb, a, node) }

// DirectOpCommand is OpCommand without the admin API, for an operation that only Temporal
// has.
func DirectOpCommand(verb string, a Action, node string) string {
	return opCommand("gpuaas --direct", verb, a, node)
}

func opCommand(program, verb string, a Action, node string) string {
	c := program + " op " + verb + " " + node
	if a == ActionReissueEnrollment {
		c += " --reissue"
	}
	return c
}

// OperationOver rejects a decision about an operation that has ended, or that has no
// open run.
func OperationOver(op Operation, node string) *schema.Error {
	if !op.Status.Ended() {
		return schema.NewError(schema.KindDecisionOutdated, "no run of operation %s is open: there is nothing to decide", op.OperationID).
			WithReason("operation_abandoned").WithNext(RehydrateCommand(node))
	}
	return schema.NewError(schema.KindDecisionOutdated, "operation %s has ended: there is nothing to decide", op.OperationID).
		WithReason(ReasonOperationOver).WithNext(OpCommand("show", op.Action, node))
}

// DecisionCommand is the command line of a decision about an operation that is not parked;
// an empty operationID means the operation that is open when the command runs. The command
// ends with ReasonPlaceholder, because every decision needs a reason.
func DecisionCommand(d Decision, a Action, node, operationID string) string {
	return Stuck{}.Command(d, a, node, operationID)
}

// Command is the DecisionCommand that names the park, by its phase and the time since which
// the operation is parked. If it runs after the operation left the park, the decision is
// rejected with schema.KindDecisionOutdated.
func (s Stuck) Command(d Decision, a Action, node, operationID string) string {
	c := OpCommand(string(d), a, node)
	if operationID != "" {
		c += " --operation " + operationID
	}
	if s.Phase != "" {
		c += " --phase " + s.Phase
	}
	if !s.Since.IsZero() {
		c += " --stuck-since " + s.Since.UTC().Format(time.RFC3339Nano)
	}
	return c + " --reason " + ReasonPlaceholder
}

// ResumeTask is the option to dispatch a lost task again.
func ResumeTask(taskID string) Option {
	return Option{Decision: DecisionResume, Harm: HarmNone,
		Command: "gpuaas task resume " + taskID + " --reason " + ReasonPlaceholder,
		Does:    "Dispatch the same task to the node again, after you have inspected the node"}
}
