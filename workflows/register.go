package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Lifecycle is the signature of every lifecycle workflow.
type Lifecycle = func(workflow.Context, lifecycle.OperationInput) (lifecycle.OperationStatus, error)

// Entry is one registered workflow.
type Entry struct {
	Type string
	Run  Lifecycle
}

// Registry lists every workflow a worker runs, by the type name that histories
// hold.
func Registry() []Entry {
	return []Entry{
		{"Enroll", Enroll},
		{"Provision", Provision},
		{"Drain", Drain},
		{"Retire", Retire},
		{"Reactivate", Reactivate},
		{"Remove", Remove},
		{"ReissueEnrollment", ReissueEnrollment},
	}
}
