// Package diagnosis describes what a doctor command found: the questions that it asked, the
// answers, and for each fault its likely owner and the next step.
package diagnosis

import "slices"

// Result is the outcome of a check.
type Result string

// The results.
const (
	OK     Result = "ok"
	Failed Result = "failed"
	// Skipped: an earlier fault makes the question pointless.
	Skipped Result = "skipped"
	// Info: the answer is a fault, but not of what was asked about.
	Info Result = "info"
)

// OnNode is the next step of a fault that the node itself shows best. The agent is not in the node's PATH.
const OnNode = "on the node: /opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor"

// Owner is who can most likely correct a fault.
type Owner string

// The owners.
const (
	// Node: an administrator of the node.
	Node Owner = "node"
	// Network: DNS, routes and firewalls between the node and the node API.
	Network Owner = "network"
	// Ingress: the load balancer or proxy in front of the node API.
	Ingress Owner = "ingress"
	// ControlPlane: the team that runs gpuaas-api, gpuaas-worker and their services.
	ControlPlane Owner = "control plane"
	// Operator: an operator with the gpuaas command.
	Operator Owner = "operator"
)

// Check is one question with its answer.
type Check struct {
	Name string `json:"name"`
	// Asked is the question, and Answer what came back. A check that was skipped may lack both.
	Asked  string `json:"asked,omitempty"`
	Answer string `json:"answer,omitempty"`
	Result Result `json:"result"`
	// Owner and Next belong to a fault. Next is a command or an instruction.
	Owner Owner  `json:"owner,omitempty"`
	Next  string `json:"next,omitempty"`
}

// OK returns the check with the answer of a question that found no fault.
func (c Check) OK(answer string) Check {
	c.Answer, c.Result = answer, OK
	return c
}

// Failed returns the check with the answer of a question that found a fault.
func (c Check) Failed(answer string, owner Owner, next string) Check {
	c.Answer, c.Result, c.Owner, c.Next = answer, Failed, owner, next
	return c
}

// Info returns the check with a fault that does not concern what was asked about.
func (c Check) Info(answer, next string) Check {
	c.Answer, c.Result, c.Next = answer, Info, next
	return c
}

// Skipped returns the check without an answer.
func (c Check) Skipped() Check {
	c.Result = Skipped
	return c
}

// Report is the result of a doctor command, in the order of the questions.
type Report struct {
	Checks []Check `json:"checks"`
}

// Add adds a check and reports whether it found no fault.
func (r *Report) Add(c Check) bool {
	r.Checks = append(r.Checks, c)
	return c.Result == OK
}

// Faults returns the checks that found a fault.
func (r *Report) Faults() []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.Result != Failed })
}
