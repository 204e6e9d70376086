// Package insight has what the admin API derives from its own records for operators: free capacity,
// how long phases take here, and a runbook for one node.
package insight

import (
	"fmt"

	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Capacity counts the nodes of one SKU in one region that are not removed.
type Capacity struct {
	SKU    string `json:"sku"`
	Region string `json:"region"`
	Nodes  int    `json:"nodes"`
	// Free nodes are active, are not cordoned, send heartbeats and have no workload. Busy ones have
	// workloads. Out are all others: silent, cordoned, out of service or not enrolled.
	Free int `json:"free"`
	Busy int `json:"busy"`
	Out  int `json:"out"`
	// GPUsFree are the GPUs of the free nodes.
	GPUsFree int `json:"gpus_free"`
	// Returning is the part of Out that is drained or retired and can be reactivated.
	Returning int `json:"returning"`
	// Recommendation is what to do for more capacity, in a sentence.
	Recommendation string `json:"recommendation"`
}

// Recommend fills in the recommendation.
func (c *Capacity) Recommend() {
	switch {
	case c.Free > 0:
		c.Recommendation = "place workloads on the " + text.Count(c.Free, "free node")
	case c.Returning > 0:
		c.Recommendation = fmt.Sprintf("reactivate %s: gpuaas node list --sku %s --state drained,retired", text.Count(c.Returning, "drained or retired node"), c.SKU)
	case c.Out > 0:
		c.Recommendation = fmt.Sprintf("return %s to service: gpuaas stuck -l sku=%s", text.Count(c.Out, "node"), c.SKU)
	default:
		c.Recommendation = "add nodes of the SKU: every node has workloads"
	}
}

// CapacityList is the response to GET /api/v1/admin/capacity.
type CapacityList struct {
	Capacity []Capacity `json:"capacity"`
}

// Fleet is the response to GET /api/v1/admin/fleet.
type Fleet struct {
	// Nodes counts the nodes that are not removed, by region, SKU and state.
	Nodes []NodeCount `json:"nodes"`
	// Ended counts the operations that ended in the last 24 hours, by status.
	Ended []OutcomeCount `json:"ended"`
}

// NodeCount counts the nodes of a region and SKU in a state, and their GPUs.
type NodeCount struct {
	Region string              `json:"region"`
	SKU    string              `json:"sku"`
	State  lifecycle.NodeState `json:"state"`
	Nodes  int                 `json:"nodes"`
	GPUs   int                 `json:"gpus"`
}

// OutcomeCount counts operations that ended with a status.
type OutcomeCount struct {
	Status     lifecycle.OperationState `json:"status"`
	Operations int                      `json:"operations"`
}

// Duration is how long completed operations of an action took in a phase.
type Duration struct {
	// Phase is the name of the phase, empty for the whole operation.
	Phase string `json:"phase"`
	// Samples is the number of phases that were measured.
	Samples       int     `json:"samples"`
	MedianSeconds float64 `json:"median_seconds"`
	P90Seconds    float64 `json:"p90_seconds"`
}

// MaxSamples bounds the newest operations that durations are computed of.
const MaxSamples = 500

// DurationList is the response to GET /api/v1/admin/durations.
type DurationList struct {
	Action    lifecycle.Action `json:"action"`
	Provider  string           `json:"provider"`
	Durations []Duration       `json:"durations"`
}

// Of returns the duration of a phase, nil without history.
func (l DurationList) Of(phase string) *Duration {
	for i, d := range l.Durations {
		if d.Phase == phase && d.Samples > 0 {
			return &l.Durations[i]
		}
	}
	return nil
}

// Step is one step of a runbook.
type Step struct {
	Title string          `json:"title"`
	Owner diagnosis.Owner `json:"owner"`
	// Command is a command or an instruction, and Harm the worst damage it may cause.
	Command string         `json:"command"`
	Harm    lifecycle.Harm `json:"harm"`
}

// Runbook is the response to GET /api/v1/admin/nodes/{node}/runbook.
type Runbook struct {
	Host    string `json:"host"`
	Summary string `json:"summary"`
	Steps   []Step `json:"steps"`
	// Needs lists what a step needs and this installation does not have.
	Needs []string `json:"needs,omitempty"`
}

// maxFaults bounds the probes that become steps.
const maxFaults = 4

// RunbookOf orders what to do about a node: the probable causes first, then the faults that the
// probes found, then the decisions that the park offers, the least harmful first, then the check
// that it helped.
func RunbookOf(r cause.Report, s *lifecycle.Stuck) Runbook {
	b := Runbook{Host: r.Host, Summary: "no probe found a fault", Steps: []Step{}}
	if top := r.Top(); top != nil {
		b.Summary = fmt.Sprintf("%s (confidence %.2f)", top.Summary, top.Confidence)
	}
	seen := map[string]bool{}
	add := func(step Step) {
		if !seen[step.Command] {
			seen[step.Command] = true
			b.Steps = append(b.Steps, step)
		}
	}
	for _, c := range r.Candidates[:min(len(r.Candidates), 2)] {
		add(Step{Title: "Probable cause: " + c.Summary, Owner: c.Owner, Command: c.Next, Harm: lifecycle.HarmNone})
	}
	faults := (&diagnosis.Report{Checks: r.Probes}).Faults()
	for _, c := range faults[:min(len(faults), maxFaults)] {
		add(Step{Title: "Correct what the probe " + c.Name + " found: " + c.Answer, Owner: c.Owner, Command: c.Next, Harm: lifecycle.HarmNone})
	}
	if s != nil {
		for _, o := range s.Options {
			add(Step{Title: "Decide: " + o.Does, Owner: diagnosis.Operator, Command: o.Command, Harm: o.Harm})
		}
	}
	b.Steps = append(b.Steps, Step{Title: "Check that the node works", Owner: diagnosis.Operator, Command: "gpuaas doctor " + r.Host, Harm: lifecycle.HarmNone})
	return b
}

// CVERunbook is the runbook for a vulnerability that keeps a node from service. The control plane
// has no list of the software on nodes and no feed of vulnerabilities, so it says what it needs.
func CVERunbook(host, id string) Runbook {
	quarantine := "gpuaas node quarantine " + host + " --reason " + id
	return Runbook{Host: host, Summary: "whether " + id + " affects the node is not known here", Steps: []Step{
		{Title: "Take the node out of service until it is known", Owner: diagnosis.Operator, Command: quarantine, Harm: lifecycle.HarmNone},
		{Title: "Find the affected package and its fixed version in the vendor's advisory, and compare it on the node", Owner: diagnosis.Node, Command: "on the node: the package manager's query, for example dpkg-query -W PACKAGE", Harm: lifecycle.HarmNone},
		{Title: "If the image is affected, build and publish a fixed image, then replace the machine", Owner: diagnosis.Operator, Command: "gpuaas node drain " + host, Harm: lifecycle.HarmWork},
		{Title: "If the node is not affected, end the quarantine", Owner: diagnosis.Operator, Command: "gpuaas node release " + host + " --reason " + id, Harm: lifecycle.HarmNone},
		{Title: "If it was drained and is fixed, return it to service", Owner: diagnosis.Operator, Command: "gpuaas node reactivate " + host + " --reason " + id, Harm: lifecycle.HarmNone},
	}, Needs: []string{"a list of the software on each node: agents report none", "a feed of vulnerabilities: none is configured"}}
}
