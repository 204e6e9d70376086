package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const resumePath = "/tasks/{task}/resume"

func taskRoutes() []Route {
	return []Route{get(resumePath, resumeForm), post(resumePath, lifecycle.DecisionResume.Role(), resume)}
}

// lostTask returns the lost task of a request with the form that dispatches it again. A task that
// is not lost any longer is a stale page.
func lostTask(r *request) (v wire.TaskView, p confirmPage, err error) {
	v, err = fetch[wire.TaskView](r, "/tasks/"+url.PathEscape(r.PathValue("task")), nil)
	if err != nil {
		return v, p, err
	}
	if v.Status != task.Lost {
		refusal := schema.NewError(schema.KindDecisionOutdated, "the task is not lost").WithReason("stale_page")
		return v, p, &staleError{refusal: refusal, now: fmt.Sprintf("The task %s of %s is %s.", v.Type, v.Host, v.Status), link: operationOf(v)}
	}
	o := lifecycle.ResumeTask(v.TaskID)
	p = confirmPage{Title: fmt.Sprintf("resume the task %s of %s", v.Type, v.Host), Does: o.Does + ". It may have run already, and may run once more.",
		Command: o.Command, Harm: o.Harm, Key: newKey(), ReasonRequired: true, Button: string(o.Decision), Back: operationOf(v)}
	if need := lacks(r, o.Decision); need != "" {
		p.MayNot = "it needs the role " + string(need)
	}
	return v, p, nil
}

// resumeForm asks for the reason to dispatch a lost task again.
func resumeForm(r *request) (view, error) {
	_, p, err := lostTask(r)
	if err != nil {
		return view{}, err
	}
	return p.form(), nil
}

// resume dispatches a lost task again.
func resume(r *request) (view, error) {
	v, p, outdated := lostTask(r)
	if _, ok := errors.AsType[*staleError](outdated); outdated != nil && !ok {
		return view{}, outdated
	}
	if outdated == nil {
		if again, ok := p.answered(r); !ok {
			return again, nil
		}
	}
	// A repeat of a decision that was carried out is about a task that is not lost, and its key still names it.
	_, err := submit[wire.TaskView](r, "/tasks/"+url.PathEscape(v.TaskID)+"/resume", wire.TaskDecision{Reason: r.PostFormValue("reason")}, r.PostFormValue("key"))
	if schema.KindOf(err) == schema.KindTaskStatus {
		err = cmp.Or(outdated, err)
	}
	return view{Location: operationOf(v)}, err
}

// operationOf is the page of the operation of a task.
func operationOf(v wire.TaskView) string {
	return Prefix + "/operations/" + url.PathEscape(v.OperationID)
}
