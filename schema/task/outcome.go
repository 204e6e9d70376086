package task

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Reference names a stored result. Temporal receives nothing else of a result: the
// workflow reads the result from the database.
type Reference struct {
	TaskID string `json:"task_id"`
	Status Status `json:"status"`
}

// Outcome is what a workflow reads of a result.
type Outcome struct {
	// Done is false while the task has no result.
	Done bool `json:"done"`
	// Open is set while the task waits for the node or runs there. A task that the database
	// does not have is neither done nor open.
	Open bool `json:"open,omitempty"`
	// Output is the brief form of Result.Output; see Result.Brief.
	Output json.RawMessage `json:"output,omitempty"`
}

// NoReport is the result of a task that was voided or lost without a report from
// the node. It ends the activity that waits for one.
func NoReport(s Status, epoch int64) Result {
	r := Result{LeaseEpoch: epoch, Status: s, Code: schema.KindTaskFailed, Message: "the task was voided"}
	if s == Lost {
		r.Message = "the lease expired without a report from the node; the task may or may not have run"
	}
	return r
}

// maxReported is how many characters of a node's message an error repeats.
const maxReported = 300

// Failure is the error of a task that did not succeed, nil for one that did. It is not
// retryable: only an operator's decision repeats the step. The message quotes the node's.
func (r Result) Failure() *schema.Error {
	switch r.Status {
	case Succeeded:
		return nil
	case Lost:
		return schema.NewError(schema.KindTaskFailed, "%s", text.Line(r.Message, maxReported)).WithReason(lifecycle.ReasonTaskLost)
	case Canceled:
		message := "the task was canceled"
		if r.Message != "" {
			message += ": " + text.Quote(r.Message, maxReported)
		}
		return schema.NewError(schema.KindTaskFailed, "%s", message).WithReason(lifecycle.ReasonTaskCanceled)
	}
	if r.Code == schema.KindTaskRefused && strings.HasPrefix(r.Message, lifecycle.ReasonSeqReplayed+":") {
		return schema.NewError(r.Code, "the node reports: %s", text.Quote(r.Message, maxReported)).WithReason(lifecycle.ReasonSeqReplayed)
	}
	for _, reason := range []string{lifecycle.ReasonUpgradeRolledBack, lifecycle.ReasonReleaseRejected, lifecycle.ReasonOtherBoot} {
		if strings.HasPrefix(r.Message, reason+":") {
			return schema.NewError(ReportedCode(r.Code), "the node reports: %s", text.Quote(r.Message, maxReported)).WithReason(reason)
		}
	}
	if r.Message == "" {
		return schema.NewError(ReportedCode(r.Code), "the node reports a failure and no reason")
	}
	return schema.NewError(ReportedCode(r.Code), "the node reports: %s", text.Quote(r.Message, maxReported))
}

// ReportedCode returns the code of a failed task: the node's, if nodes may report it,
// otherwise KindTaskFailed. Other kinds would speak for the control plane: that a service
// is unavailable, or that a newer operation holds the node.
func ReportedCode(code schema.Kind) schema.Kind {
	if slices.Contains([]schema.Kind{schema.KindTaskRefused, schema.KindUnfit}, code) {
		return code
	}
	return schema.KindTaskFailed
}

// Limits of a brief output. They exceed what a machine has and an operator reads.
const (
	maxGPUs     = 256
	maxModel    = 100
	maxBlockers = 10
	maxChecks   = 20
	maxName     = 64
	maxDetail   = 120
)

// CheckOutput reports an output that does not have the type's form, as KindTaskFailed.
func CheckOutput(t Type, output json.RawMessage) error {
	_, err := Result{Output: output}.Brief(t)
	return err
}

// Brief returns the part of a succeeded task's output that workflows use, of a bounded
// size. Texts of the node are quoted. KindTaskFailed if the output does not have the
// type's form.
func (r Result) Brief(t Type) (json.RawMessage, error) {
	switch t {
	case FactsCollect:
		return brief(r, func(f *inventory.Facts) {
			*f = inventory.Facts{CPUs: f.CPUs, MemoryBytes: f.MemoryBytes, GPUs: f.GPUs[:min(len(f.GPUs), maxGPUs)]}
			for i, g := range f.GPUs {
				f.GPUs[i] = inventory.GPU{Index: g.Index, Model: text.Quote(g.Model, maxModel)}
			}
		})
	case NodeProbe:
		return brief(r, func(p *inventory.ProbeReport) {
			p.BootID = ""
			p.Checks = slices.DeleteFunc(p.Checks, func(c inventory.ProbeCheck) bool { return c.OK })
			p.Checks = p.Checks[:min(len(p.Checks), maxChecks)]
			for i, c := range p.Checks {
				p.Checks[i] = inventory.ProbeCheck{Name: name(c.Name), Detail: text.Quote(c.Detail, maxDetail)}
			}
		})
	case WorkloadCordon, WorkloadUncordon:
		return brief(r, func(c *CordonResult) {
			c.Workloads = c.Workloads[:min(len(c.Workloads), maxBlockers)]
			for i, w := range c.Workloads {
				c.Workloads[i] = Workload{Name: text.Quote(w.Name, maxDetail), Kind: kind(w.Kind)}
			}
		})
	case WorkloadDrain:
		return brief(r, func(d *DrainResult) {
			d.Stopped, d.Ignored = nil, nil
			d.Blocked = d.Blocked[:min(len(d.Blocked), maxBlockers)]
			for i, b := range d.Blocked {
				d.Blocked[i] = Blocker{Workload: name(b.Workload), Kind: kind(b.Kind), Reason: text.Quote(b.Reason, maxDetail)}
			}
		})
	case NewIdentity:
		return brief(r, func(*struct{}) {})
	case NodeReboot:
		return json.RawMessage("{}"), nil // whether the node restarts, its next boot ID shows
	case GPUReset:
		return brief(r, func(reset *ResetResult) {
			reset.Reset = reset.Reset[:min(len(reset.Reset), maxGPUs)]
			for i, id := range reset.Reset {
				reset.Reset[i] = name(id)
			}
		})
	case NodeVerify:
		return brief(r, func(v *VerifyResult) {
			v.BootID = ""
			v.Tests = v.Tests[:min(len(v.Tests), maxChecks)]
			for i, t := range v.Tests {
				v.Tests[i].Name, v.Tests[i].Detail = name(t.Name), text.Quote(t.Detail, maxDetail)
			}
		})
	case AgentUpgrade:
		return brief(r, func(u *UpgradeResult) { u.Version = name(u.Version) })
	}
	return nil, nil
}

// name returns a name that a node reports, quoted unless it is plain.
func name(s string) string {
	return text.Plain(s, maxName, "._:/-")
}

// kind returns a kind that a node reports, KindUnknown if it has not the form of one. It is
// empty in the result of an older agent.
func kind(s string) string {
	if s != "" && !text.IsToken(s, maxName, "_-") {
		return KindUnknown
	}
	return s
}

func brief[T any](r Result, shorten func(*T)) (json.RawMessage, error) {
	var out T
	if err := r.Decode(&out); err != nil {
		return nil, err
	}
	shorten(&out)
	return json.Marshal(out)
}
