package workflows

import (
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

var updatePayloads = flag.Bool("update-payloads", false, "rewrite testdata/payloads.txt with the JSON shape of every payload")

const payloadShapes = "testdata/payloads.txt"

// payloadTypes returns the types of everything that histories contain: inputs and
// results of workflows, activities and node tasks, heartbeats, signals, updates and queries.
func payloadTypes(t *testing.T) []reflect.Type {
	t.Helper()
	types := heartbeatTypes(t)
	for _, v := range []any{lifecycle.ResolveRequest{}, lifecycle.Resolution{}, lifecycle.AgentEvent{},
		task.CordonResult{}, task.DrainResult{}, task.UpgradeResult{}, inventory.Facts{}, inventory.ProbeReport{}} {
		types = append(types, reflect.TypeOf(v))
	}
	for _, e := range Registry() {
		f := reflect.TypeOf(e.Run)
		types = slices.AppendSeq(slices.AppendSeq(types, f.Ins()), f.Outs())
	}
	for _, v := range []any{record, node, machine, reclaimer, watcher, retainer, sweeper, explainer, scanner} {
		for method := range reflect.TypeOf(v).Methods() {
			in := slices.Collect(method.Type.Ins())
			types = slices.AppendSeq(append(types, in[1:]...), method.Type.Outs()) // the receiver is the first
		}
	}
	return slices.DeleteFunc(types, func(t reflect.Type) bool { return t.Kind() == reflect.Interface })
}

// heartbeatTypes returns what a round of the run watcher converts to payloads. Its
// heartbeats, which the next attempt reads, are of a type that only package activities has.
func heartbeatTypes(t *testing.T) (types []reflect.Type) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.SetDataConverter(typeRecorder{converter.GetDefaultDataConverter(), &types})
	a := &activities.Watch{Abandoner: oneLostRun{}, Runs: oneLostRun{}}
	env.RegisterActivity(a)
	_, err := env.ExecuteActivity(a.AbandonOperations, "")
	require.NoError(t, err)
	return types
}

// typeRecorder records the types of the values that it converts.
type typeRecorder struct {
	converter.DataConverter
	types *[]reflect.Type
}

func (r typeRecorder) ToPayloads(values ...any) (*commonpb.Payloads, error) {
	for _, v := range values {
		*r.types = append(*r.types, reflect.TypeOf(v))
	}
	return r.DataConverter.ToPayloads(values...)
}

// oneLostRun is a database with one open operation, whose run Temporal does not have.
type oneLostRun struct{ activities.Abandoner }

func (oneLostRun) Watched(context.Context, string, int) ([]activities.WatchedOperation, error) {
	return make([]activities.WatchedOperation, 1), nil
}

func (oneLostRun) Abandon(context.Context, string, string, lifecycle.RunEnd) (bool, error) {
	return true, nil
}

func (oneLostRun) RunEnds(context.Context, []lifecycle.Operation) ([]lifecycle.RunEnd, []error) {
	return []lifecycle.RunEnd{lifecycle.RunLost}, make([]error, 1)
}

// shapes returns a line "package.Type.field kind" for each field of the types and of the
// types that they contain.
func shapes(types ...reflect.Type) []string {
	s := shape{}
	for _, t := range types {
		s.of("", t)
	}
	return slices.Sorted(maps.Keys(s))
}

// shape is a set of lines.
type shape map[string]bool

// of adds a value at a path, and the fields of its type.
func (s shape) of(path string, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kind := t.Kind().String()
	switch {
	case t == reflect.TypeFor[time.Time]():
		kind = "time"
	case t == reflect.TypeFor[json.RawMessage]():
		kind = "json"
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()), reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		kind = "as " + t.String() + " marshals"
	case t.Kind() == reflect.Struct:
		kind = t.String()
		s.fields(kind, t)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		kind = "base64"
	case t.Kind() == reflect.Slice:
		s.of(path+"[]", t.Elem())
		return
	case t.Kind() == reflect.Map:
		s.of(path+"{"+t.Key().Kind().String()+"}", t.Elem())
		return
	}
	if path != "" {
		s[path+" "+kind] = true
	}
}

// fields adds the fields of a struct under a path, unless they are there.
func (s shape) fields(path string, t reflect.Type) {
	if s[path] {
		return
	}
	s[path] = true
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "": // its fields are fields of t
			s.embedded(path, f.Type)
		default:
			s.of(path+"."+cmp.Or(name, f.Name), f.Type)
		}
	}
}

func (s shape) embedded(path string, t reflect.Type) {
	delete(s, path)
	s.fields(path, t)
}

// TestPayloadShapes fails when the JSON of a payload changes. Open runs contain the old
// JSON: a field that vanishes or gets another type loses its value when they continue.
func TestPayloadShapes(t *testing.T) {
	t.Parallel()
	now := shapes(payloadTypes(t)...)
	if *updatePayloads {
		require.NoError(t, os.WriteFile(payloadShapes, []byte(strings.Join(now, "\n")+"\n"), 0o644))
	}
	raw, err := os.ReadFile(payloadShapes)
	require.NoError(t, err)
	lost, added := compareShapes(strings.Split(strings.TrimSpace(string(raw)), "\n"), now)
	require.Empty(t, lost, "open runs contain these fields: keep them, or let every run end before the upgrade "+
		"and rewrite the file (go test ./workflows -run TestPayloadShapes -update-payloads)")
	require.Empty(t, added, "new fields: go test ./workflows -run TestPayloadShapes -update-payloads")
}

func compareShapes(was, now []string) (lost, added []string) {
	missing := func(from, in []string) []string {
		return slices.DeleteFunc(slices.Clone(from), func(line string) bool { return slices.Contains(in, line) })
	}
	return missing(was, now), missing(now, was)
}

// TestPayloadShapesReport: a field that vanishes, one that changes its type, and a new
// one.
func TestPayloadShapesReport(t *testing.T) {
	t.Parallel()
	was, now := shapes(reflect.TypeFor[payloadBefore]()), shapes(reflect.TypeFor[payloadAfter]())
	for i := range now {
		now[i] = strings.ReplaceAll(now[i], "payloadAfter", "payloadBefore")
	}
	lost, added := compareShapes(was, now)
	require.Equal(t, []string{
		"workflows.payloadBefore.by_name{string} workflows.payloadInner",
		"workflows.payloadBefore.count int",
		"workflows.payloadBefore.gone bool",
	}, lost)
	require.Equal(t, []string{
		"workflows.payloadBefore.Raw json",
		"workflows.payloadBefore.at time",
		"workflows.payloadBefore.count string",
	}, added)
	require.Contains(t, was, "workflows.payloadInner.at time")
}

type payloadInner struct {
	At time.Time `json:"at"`
}

type payloadBefore struct {
	ID     string                  `json:"id"`
	Count  int                     `json:"count"`
	Gone   bool                    `json:"gone"`
	Inner  *payloadInner           `json:"inner,omitempty"`
	List   []payloadInner          `json:"list"`
	ByName map[string]payloadInner `json:"by_name"`
	Hidden string                  `json:"-"`
}

type payloadAfter struct {
	ID    string         `json:"id"`
	Count string         `json:"count"`
	Inner *payloadInner  `json:"inner,omitempty"`
	List  []payloadInner `json:"list"`
	payloadInner
	Raw json.RawMessage
}
