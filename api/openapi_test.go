package api_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// document is the part of an OpenAPI document that the handlers are held to.
type document struct {
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]model `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	OperationID string                   `json:"operationId"`
	RequestBody *struct{}                `json:"requestBody"`
	Parameters  []map[string]any         `json:"parameters"`
	Responses   map[string]any           `json:"responses"`
	ErrorCodes  []schema.Kind            `json:"x-error-codes"`
	Role        trust.Role               `json:"x-role"`
	Exceptions  map[string]trust.Role    `json:"x-role-exceptions"` // by action or decision
	Also        trust.Role               `json:"x-role-also"`
	Security    *[]map[string][]struct{} `json:"security"`
}

type model struct {
	GoType               string           `json:"x-go-type"`
	Body                 string           `json:"x-body"` // of a type that clients do not import
	Ref                  string           `json:"$ref"`
	Type                 any              `json:"type"`
	Encoding             string           `json:"contentEncoding"`
	Enum                 []string         `json:"enum"`
	Required             []string         `json:"required"`
	Properties           map[string]model `json:"properties"`
	Items                *model           `json:"items"`
	AdditionalProperties any              `json:"additionalProperties"`

	component string
}

func load(t *testing.T) document {
	t.Helper()
	text, err := os.ReadFile("../schema/openapi.yaml")
	require.NoError(t, err)
	var d document
	require.NoError(t, yaml.Unmarshal(text, &d))
	return d
}

func routes() []edge.Route {
	all := nodeapi.New(nodeapi.Config{}).Routes()
	return append(all, adminapi.New(adminapi.Config{}).Routes()...)
}

// Every route is in the document and every operation of the document has a
// route, with the same statuses and error codes, and a body where the other has.
func TestDocumentListsTheRoutes(t *testing.T) {
	served := map[string]edge.Route{}
	for _, r := range routes() {
		served[strings.ToLower(r.Method)+" "+r.Path] = r
	}
	described := described(load(t))
	assert.ElementsMatch(t, slices.Collect(maps.Keys(served)), slices.Collect(maps.Keys(described)))
	for name, r := range served {
		op := described[name]
		var statuses []int
		for code := range op.Responses {
			n, err := strconv.Atoi(code)
			require.NoError(t, err, name)
			statuses = append(statuses, n)
		}
		slices.Sort(statuses)
		codes := slices.Compact(slices.Sorted(slices.Values(append([]schema.Kind{schema.KindInvalidRequest, schema.KindServiceUnavailable, schema.KindInternal}, r.Kinds...))))
		assert.Equal(t, statusesOf(r, codes), statuses, "statuses of %s", name)
		assert.ElementsMatch(t, codes, op.ErrorCodes, "error codes of %s", name)
		assert.Equal(t, r.MaxBody > 0, op.RequestBody != nil, "body of %s", name)
		assert.NotEmpty(t, op.OperationID, name)
		for _, p := range pathParameters(r.Path) {
			assert.True(t, hasParameter(op, p), "%s describes {%s}", name, p)
		}
	}
}

// statusesOf returns the status codes of a route with the error codes, sorted.
func statusesOf(r edge.Route, codes []schema.Kind) []int {
	all := slices.Clone(r.Success)
	for _, k := range codes {
		all = append(all, k.Info().HTTP)
	}
	return slices.Compact(slices.Sorted(slices.Values(all)))
}

// Every endpoint of the admin API declares the role that its callers need.
func TestDocumentNamesTheRoles(t *testing.T) {
	described := described(load(t))
	for _, e := range adminapi.New(adminapi.Config{}).Endpoints() {
		op := described[strings.ToLower(e.Method)+" "+e.Path]
		assert.Equal(t, e.Role, cmp.Or(op.Exceptions[path.Base(e.Path)], op.Role), "%s %s", e.Method, e.Path)
		assert.Equal(t, e.Also, op.Also, "%s %s", e.Method, e.Path)
	}
}

// described returns the operations of the document by method and path. A path with
// {action} or {decision} describes one path for each of their values.
func described(d document) map[string]operation {
	out := map[string]operation{}
	for template, methods := range d.Paths {
		paths := []string{template}
		for placeholder, values := range map[string][]string{"{action}": d.Components.Schemas["Action"].Enum, "{decision}": texts(lifecycle.Decisions()), "{rotation_decision}": texts(rotation.Decisions())} {
			if strings.Contains(template, placeholder) {
				paths = nil
				for _, value := range values {
					paths = append(paths, strings.Replace(template, placeholder, value, 1))
				}
			}
		}
		for _, p := range paths {
			for method, op := range methods {
				out[method+" "+p] = op
			}
		}
	}
	return out
}

func pathParameters(path string) []string {
	var out []string
	for part := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			out = append(out, strings.TrimSuffix(name, "}"))
		}
	}
	return out
}

// hasParameter relies on the document's habit of naming the component like the
// parameter: node_id is NodeId.
func hasParameter(op operation, name string) bool {
	for _, p := range op.Parameters {
		ref, _ := p["$ref"].(string)
		component := strings.ToLower(ref[strings.LastIndex(ref, "/")+1:])
		if component == strings.ReplaceAll(name, "_", "") {
			return true
		}
	}
	return false
}

// bodies are the types of requests and responses, the roots of the components.
func bodies() (requests, responses []any) {
	requests = []any{wire.RegisterNodeRequest{}, wire.NodeChange{}, inventory.NewSKU{}, inventory.SKUDeactivation{}, wire.LifecycleRequest{}, adminapi.RehydrateRequest{}, adminapi.LockRequest{}, wire.ResolveOperation{}, wire.EnrollRequest{},
		wire.RenewRequest{}, wire.RecoverRequest{}, wire.BootstrapScriptRequest{}, trust.BootstrapRequest{},
		wire.Heartbeat{}, wire.PollRequest{}, task.Result{}, task.Progress{}, wire.TaskDecision{}, rotation.Start{}, rotation.Decide{}, health.Report{}, record.SetPolicy{}, record.Arm{}, record.Change{}}
	responses = []any{schema.ErrorBody{}, edge.Health{}, wire.NodeView{}, wire.NodeList{}, signal.List{}, signal.Answer{}, evidence.Bundle{}, inventory.SKUList{}, machine.Providers{}, version.Build{}, instance.List{}, instance.View{}, wire.LifecycleResponse{}, lifecycle.Rehydration{},
		trust.BootstrapBundle{}, wire.BootstrapScriptResponse{}, wire.AuditPage{}, wire.AuditStreamList{}, wire.AuditStreamPage{}, audit.CheckpointPage{}, audit.Gap{},
		wire.OperationList{}, wire.OperationView{}, wire.StuckList{}, cause.Report{}, insight.CapacityList{}, insight.Fleet{}, insight.DurationList{}, insight.Runbook{}, wire.EnrollResponse{}, wire.TaskOffer{}, wire.ProgressResponse{},
		wire.TaskView{}, wire.TaskList{}, trust.VerifierSets{}, trust.NodeTrust{}, trust.IdentityToken{}, rotation.View{}, rotation.Plan{}, rotation.Trust{}, record.Status{}, record.Decisions{}, record.Facts{}, record.Policies{}}
	requests = append(requests, template.Change{}, template.Deletion{})
	return requests, append(responses, template.Template{}, template.List{}, template.Report{}, template.Fleet{})
}

// The client is generated on the Go types that the components name, so each
// component must describe its type field by field.
func TestDocumentDescribesTheBodies(t *testing.T) {
	d := load(t)
	c := checker{t: t, models: map[string]model{}, seen: map[string]bool{}}
	for name, m := range d.Components.Schemas {
		m.component = name
		c.models[cmp.Or(m.GoType, m.Body)] = m
	}
	requests, responses := bodies()
	for _, v := range append(requests, responses...) {
		c.check(reflect.TypeOf(v))
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(c.seen)), slices.Collect(maps.Keys(c.models)),
		"components that no body uses, or types without a component")
	for _, v := range requests {
		assert.Equal(t, false, c.models[reflect.TypeOf(v).String()].AdditionalProperties, "%T refuses unknown fields", v)
	}
}

// checker compares types with components; both are named as in the source, for
// example wire.NodeView.
type checker struct {
	t      *testing.T
	models map[string]model
	seen   map[string]bool
}

func (c checker) check(typ reflect.Type) {
	name := typ.String()
	if c.seen[name] {
		return
	}
	c.seen[name] = true
	m, ok := c.models[name]
	if !assert.True(c.t, ok, "component of %s", name) {
		return
	}
	var names, required []string
	for f := range flat(typ) {
		field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if field == "-" {
			continue
		}
		names = append(names, field)
		if !strings.Contains(options, "omit") {
			required = append(required, field)
		}
		c.field(name+"."+field, f.Type, m.Properties[field])
	}
	assert.ElementsMatch(c.t, names, slices.Collect(maps.Keys(m.Properties)), "fields of %s", name)
	if !slices.Contains(optional(), typ) {
		assert.ElementsMatch(c.t, required, m.Required, "required fields of %s", name)
	}
}

// optional are the requests of which every field may be left out.
func optional() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[wire.LifecycleRequest](), reflect.TypeFor[adminapi.RehydrateRequest](), reflect.TypeFor[wire.BootstrapScriptRequest]()}
}

// flat are the fields of a type as JSON has them: those of an embedded type are
// its own.
func flat(typ reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		for f := range typ.Fields() {
			if !f.Anonymous {
				if !yield(f) {
					return
				}
				continue
			}
			for e := range flat(f.Type) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// field checks one property against its Go type.
func (c checker) field(name string, typ reflect.Type, m model) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case typ == reflect.TypeFor[[]byte]():
		assert.Equal(c.t, "base64", m.Encoding, name)
	case typ == reflect.TypeFor[time.Time]():
		assert.Contains(c.t, fmt.Sprint(m.Type), "string", name)
	case typ == reflect.TypeFor[json.RawMessage]():
	case typ == reflect.TypeFor[machine.Limits]():
		c.limits(name, m)
	case typ.Kind() == reflect.Struct:
		c.check(typ)
		assert.Equal(c.t, "#/components/schemas/"+c.models[typ.String()].component, m.Ref, name)
	case typ.Kind() == reflect.Slice:
		assert.Equal(c.t, "array", m.Type, name)
		if assert.NotNil(c.t, m.Items, name) {
			c.field(name+"[]", typ.Elem(), *m.Items)
		}
	case enumerations()[typ] != nil:
		c.seen[typ.String()] = true
		assert.Equal(c.t, "#/components/schemas/"+c.models[typ.String()].component, m.Ref, name)
		assert.Equal(c.t, enumerations()[typ], c.models[typ.String()].Enum, typ.String())
	default:
		want := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer",
			reflect.Int64: "integer", reflect.Float64: "number", reflect.Map: "object"}[typ.Kind()]
		assert.Equal(c.t, want, m.Type, name)
	}
}

// limits checks a property of type machine.Limits, which encodes itself.
func (c checker) limits(name string, m model) {
	typ := reflect.TypeFor[machine.Limits]().String()
	c.seen[typ] = true
	text, err := json.Marshal(machine.Limits{Create: time.Minute, Boot: time.Minute, Delete: time.Minute})
	require.NoError(c.t, err)
	var fields map[string]int64
	require.NoError(c.t, json.Unmarshal(text, &fields))
	assert.ElementsMatch(c.t, slices.Collect(maps.Keys(fields)), slices.Collect(maps.Keys(c.models[typ].Properties)), name)
	assert.Equal(c.t, "#/components/schemas/"+c.models[typ].component, m.Ref, name)
}

func enumerations() map[reflect.Type][]string {
	var kinds []schema.Kind
	for _, row := range schema.Kinds() {
		kinds = append(kinds, row.Kind)
	}
	var actions []lifecycle.Action
	for _, p := range lifecycle.Operations() {
		actions = append(actions, p.Action)
	}
	var types []task.Type
	for _, row := range task.Types() {
		types = append(types, row.Type)
	}
	return map[reflect.Type][]string{
		reflect.TypeFor[schema.Kind]():              texts(kinds),
		reflect.TypeFor[health.Status]():            texts([]health.Status{health.Healthy, health.Unhealthy, health.Unknown}),
		reflect.TypeFor[health.Repair]():            texts(health.Repairs()),
		reflect.TypeFor[health.Phase]():             phases(),
		reflect.TypeFor[lifecycle.Action]():         texts(actions),
		reflect.TypeFor[lifecycle.NodeState]():      texts(lifecycle.NodeStates()),
		reflect.TypeFor[lifecycle.InstanceState]():  texts(instance.States()),
		reflect.TypeFor[inventory.Class]():          {"persistent", "ephemeral", "spot"},
		reflect.TypeFor[lifecycle.OperationState](): texts(lifecycle.OperationStates()),
		reflect.TypeFor[lifecycle.PhaseState]():     {"pending", "running", "parked", "completed", "skipped", "forced", "failed", "cancelled"},
		reflect.TypeFor[lifecycle.Attention]():      {"none", "agent", "provider", "operator", "compensation"},
		reflect.TypeFor[lifecycle.Decision]():       texts(append(lifecycle.Decisions(), lifecycle.DecisionResume, lifecycle.DecisionRehydrate, lifecycle.DecisionRestart)),
		reflect.TypeFor[lifecycle.RunEnd]():         texts(lifecycle.RunEnds()),
		reflect.TypeFor[lifecycle.Harm]():           {"none", "work", "final"},
		reflect.TypeFor[task.Status]():              {"pending", "dispatched", "running", "succeeded", "failed", "cancelled", "lost"},
		reflect.TypeFor[task.Type]():                texts(types),
		reflect.TypeFor[task.Effect]():              {"read", "idempotent", "destructive"},
	}
}

func texts[T ~string](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

// phases are the names of the phases.
func phases() (names []string) {
	for p := health.PhaseUnknown; p <= health.PhaseReplace; p++ {
		names = append(names, p.String())
	}
	return names
}
