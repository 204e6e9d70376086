package worker

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The tests here check by type that no workflow or activity can put a secret into a
// history. They read the list from register, so a new workflow or activity is
// checked without being listed here.

// recorder is a registry that records the types of registered functions.
type recorder struct {
	worker.Registry
	functions map[string]reflect.Type
	trust     *activities.Trust
	task      *activities.Task
}

func (r *recorder) RegisterWorkflowWithOptions(w any, o workflow.RegisterOptions) {
	r.functions["workflow "+o.Name] = reflect.TypeOf(w)
}

func (r *recorder) RegisterActivityWithOptions(a any, _ sdkactivity.RegisterOptions) {
	v := reflect.ValueOf(a)
	switch a := a.(type) {
	case *activities.Trust:
		r.trust = a
	case *activities.Task:
		r.task = a
	}
	for m, f := range v.Methods() {
		r.functions["activity "+v.Elem().Type().Name()+"."+m.Name] = f.Type()
	}
}

// TestNoTaskIsSignedWithAWrongClock: tasks of operations and of rotations have one signer, and a
// clock that was never compared may be wrong.
func TestNoTaskIsSignedWithAWrongClock(t *testing.T) {
	t.Parallel()
	r := &recorder{functions: map[string]reflect.Type{}}
	clocks := daemon.NewClocks(prometheus.NewRegistry())
	clocks.Compare(daemon.ClockOfPostgres, "nothing is signed", nil)
	p := &parts{Process: &daemon.Process{Clocks: clocks}, cfg: &config{}, store: &store.Store{}, vault: &vault.Client{}, temporal: &temporal.Client{}, metrics: &metrics{}}
	register(r, p, "dev")
	registerTrust(r, p, "dev")
	require.Equal(t, r.task.NewTasks, r.trust.NewTasks)
	_, err := r.trust.NewTasks.Signer.Sign(t.Context(), []byte("{}"))
	require.ErrorContains(t, err, "the clock of postgres was not compared with this machine's yet; nothing is signed")
}

func TestNoSecretInAnySignature(t *testing.T) {
	t.Parallel()
	r := &recorder{functions: map[string]reflect.Type{}}
	register(r, &parts{Process: &daemon.Process{}, cfg: &config{}, store: &store.Store{}, vault: &vault.Client{}, temporal: &temporal.Client{}, metrics: &metrics{}}, "dev")
	require.Greater(t, len(r.functions), 12)
	// Messages to running workflows and their responses.
	for name, message := range map[string]any{
		lifecycle.SignalAgent: lifecycle.AgentEvent{}, lifecycle.UpdateResolve: lifecycle.ResolveRequest{},
		lifecycle.UpdateSubmit: lifecycle.Operation{}, lifecycle.QueryStatus: lifecycle.OperationStatus{},
		"task result": task.Result{}, "error details": schema.ErrorInfo{},
	} {
		r.functions["message "+name] = reflect.TypeOf(message)
	}
	for name, f := range r.functions {
		require.Empty(t, faults(f), name)
	}
}

// faults lists the parts of a type that could carry a secret or any value.
func faults(t reflect.Type) []string {
	s := search{seen: map[reflect.Type]bool{}}
	if t.Kind() != reflect.Func {
		s.walk(t, t.Name())
		return s.faults
	}
	for p := range t.Ins() {
		s.walk(p, p.String())
	}
	for p := range t.Outs() {
		s.walk(p, p.String())
	}
	return s.faults
}

type search struct {
	seen   map[reflect.Type]bool
	faults []string
}

func (s *search) walk(t reflect.Type, path string) {
	if s.seen[t] || harmless(t) {
		return
	}
	s.seen[t] = true
	for _, secret := range []any{schema.Secret{}, trust.BootstrapBundle{}, wire.RecoveryBundle{}} {
		if t == reflect.TypeOf(secret) {
			s.faults = append(s.faults, path+" is a "+t.String())
			return
		}
	}
	switch t.Kind() {
	case reflect.Interface:
		s.faults = append(s.faults, path+" can hold anything")
	case reflect.Struct:
		for f := range t.Fields() {
			s.walk(f.Type, path+"."+f.Name)
		}
	case reflect.Map:
		s.walk(t.Key(), path+" key")
		s.walk(t.Elem(), path+" value")
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan:
		s.walk(t.Elem(), path)
	}
}

// harmless reports contexts, errors and times, which are not encoded as they are.
func harmless(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[context.Context](), reflect.TypeFor[workflow.Context](), reflect.TypeFor[error]():
		return true
	}
	return t.PkgPath() == "time"
}

// TestSignaturesAreSearched proves that the test above can fail.
func TestSignaturesAreSearched(t *testing.T) {
	t.Parallel()
	type nested struct {
		Steps []map[string]*trust.BootstrapBundle
	}
	type hidden struct{ token schema.Secret } //nolint:unused // only its type is read
	for want, f := range map[string]any{
		"is a schema.Secret":         func(context.Context, schema.Secret) error { return nil },
		"Steps value is a trust.Boo": func(context.Context) (nested, error) { return nested{}, nil },
		"token is a schema.Secret":   func(context.Context, hidden) error { return nil },
		"is a wire.RecoveryBundle":   func(context.Context, *wire.RecoveryBundle) error { return nil },
		"value can hold anything":    func(context.Context, map[string]any) error { return nil },
		"interface {} can hold":      func(context.Context, any) error { return nil },
		"is a trust.BootstrapBundle": func(workflow.Context, []trust.BootstrapBundle) error { return nil },
	} {
		got := faults(reflect.TypeOf(f))
		require.Len(t, got, 1, fmt.Sprint(want, got))
		require.Contains(t, got[0], want)
	}
	require.Empty(t, faults(reflect.TypeOf(func(context.Context, lifecycle.OperationInput) (task.Result, error) {
		return task.Result{}, nil
	})))
}
