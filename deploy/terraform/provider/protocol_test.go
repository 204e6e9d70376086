package provider

import (
	"encoding/json"
	"math/big"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"github.com/stretchr/testify/require"
)

// object is a configuration or a state; nil for none. A missing attribute is null.
type object map[string]any

// unknown is the value of an attribute that is known after apply.
const unknown = "(known after apply)"

// terraform calls the provider as the program terraform does.
type terraform struct {
	t       *testing.T
	server  tfprotov6.ProviderServer
	schemas *tfprotov6.GetProviderSchemaResponse
}

func start(t *testing.T) *terraform {
	t.Helper()
	server := providerserver.NewProtocol6(New())()
	schemas, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	require.NoError(t, err)
	require.Empty(t, schemas.Diagnostics)
	return &terraform{t, server, schemas}
}

// configure configures the provider and returns the errors.
func (f *terraform) configure(c object) string {
	f.t.Helper()
	r, err := f.server.ConfigureProvider(f.t.Context(), &tfprotov6.ConfigureProviderRequest{TerraformVersion: "1.13.0", Config: f.value(f.schemas.Provider, c)})
	require.NoError(f.t, err)
	return texts(r.Diagnostics)
}

// plan plans a change from a state to a configuration.
func (f *terraform) plan(kind string, state, config object) (*tfprotov6.PlanResourceChangeResponse, object) {
	f.t.Helper()
	s := f.schemas.ResourceSchemas[kind]
	if config != nil {
		r, err := f.server.ValidateResourceConfig(f.t.Context(), &tfprotov6.ValidateResourceConfigRequest{TypeName: kind, Config: f.value(s, config)})
		require.NoError(f.t, err)
		require.Empty(f.t, texts(r.Diagnostics))
	}
	r, err := f.server.PlanResourceChange(f.t.Context(), &tfprotov6.PlanResourceChangeRequest{TypeName: kind, PriorState: f.value(s, state),
		ProposedNewState: f.value(s, proposed(s, state, config)), Config: f.value(s, config)})
	require.NoError(f.t, err)
	if r.PlannedState == nil {
		return r, nil
	}
	return r, f.read(s, r.PlannedState)
}

// proposed is the configuration with the state of its computed attributes, as terraform makes it.
func proposed(s *tfprotov6.Schema, state, config object) object {
	if config == nil {
		return nil
	}
	out := object{}
	for _, a := range s.Block.Attributes {
		if out[a.Name] = config[a.Name]; out[a.Name] == nil && a.Computed {
			out[a.Name] = state[a.Name]
		}
	}
	return out
}

// apply plans and applies a change. It returns the new state and the errors.
func (f *terraform) apply(kind string, state, config object) (object, string) {
	f.t.Helper()
	s := f.schemas.ResourceSchemas[kind]
	p, _ := f.plan(kind, state, config)
	if text := texts(p.Diagnostics); text != "" {
		return state, text
	}
	require.Empty(f.t, p.RequiresReplace, "the plan replaces the resource")
	r, err := f.server.ApplyResourceChange(f.t.Context(), &tfprotov6.ApplyResourceChangeRequest{TypeName: kind, PriorState: f.value(s, state),
		PlannedState: p.PlannedState, Config: f.value(s, config), PlannedPrivate: p.PlannedPrivate})
	require.NoError(f.t, err)
	return f.read(s, r.NewState), texts(r.Diagnostics)
}

// refresh reads a resource; nil if it is gone.
func (f *terraform) refresh(kind string, state object) object {
	f.t.Helper()
	s := f.schemas.ResourceSchemas[kind]
	r, err := f.server.ReadResource(f.t.Context(), &tfprotov6.ReadResourceRequest{TypeName: kind, CurrentState: f.value(s, state)})
	require.NoError(f.t, err)
	require.Empty(f.t, texts(r.Diagnostics))
	return f.read(s, r.NewState)
}

// adopt imports a resource and reads it.
func (f *terraform) adopt(kind, id string) (object, string) {
	f.t.Helper()
	r, err := f.server.ImportResourceState(f.t.Context(), &tfprotov6.ImportResourceStateRequest{TypeName: kind, ID: id})
	require.NoError(f.t, err)
	if text := texts(r.Diagnostics); text != "" {
		return nil, text
	}
	require.Len(f.t, r.ImportedResources, 1)
	return f.refresh(kind, f.read(f.schemas.ResourceSchemas[kind], r.ImportedResources[0].State)), ""
}

// data reads a data source.
func (f *terraform) data(kind string, config object) (object, string) {
	f.t.Helper()
	s := f.schemas.DataSourceSchemas[kind]
	r, err := f.server.ReadDataSource(f.t.Context(), &tfprotov6.ReadDataSourceRequest{TypeName: kind, Config: f.value(s, config)})
	require.NoError(f.t, err)
	if text := texts(r.Diagnostics); text != "" {
		return nil, text
	}
	return f.read(s, r.State), ""
}

// value encodes an object of a schema.
func (f *terraform) value(s *tfprotov6.Schema, o object) *tfprotov6.DynamicValue {
	f.t.Helper()
	var all map[string]any
	if o != nil {
		all = map[string]any{}
		for _, a := range s.Block.Attributes {
			all[a.Name] = o[a.Name]
		}
	}
	text, err := json.Marshal(all)
	require.NoError(f.t, err)
	return &tfprotov6.DynamicValue{JSON: text}
}

// read decodes an object of a schema.
func (f *terraform) read(s *tfprotov6.Schema, v *tfprotov6.DynamicValue) object {
	f.t.Helper()
	decoded, err := v.Unmarshal(s.ValueType())
	require.NoError(f.t, err)
	o, _ := f.plain(decoded).(object)
	return o
}

// plain converts a value to one of Go.
func (f *terraform) plain(v tftypes.Value) any {
	f.t.Helper()
	switch {
	case !v.IsKnown():
		return unknown
	case v.IsNull():
		return nil
	}
	var err error
	var out any
	switch {
	case v.Type().Is(tftypes.String):
		var s string
		err = v.As(&s)
		out = s
	case v.Type().Is(tftypes.Bool):
		var b bool
		err = v.As(&b)
		out = b
	case v.Type().Is(tftypes.Number):
		n := new(big.Float)
		err = v.As(&n)
		i, _ := n.Int64()
		out = i
	case v.Type().Is(tftypes.List{}):
		var values []tftypes.Value
		err = v.As(&values)
		list := []any{}
		for _, e := range values {
			list = append(list, f.plain(e))
		}
		out = list
	default:
		var values map[string]tftypes.Value
		err = v.As(&values)
		o := object{}
		for name, e := range values {
			o[name] = f.plain(e)
		}
		out = o
	}
	require.NoError(f.t, err)
	return out
}

// texts returns the errors of diagnostics.
func texts(all []*tfprotov6.Diagnostic) (text string) {
	for _, d := range all {
		text += d.Summary + ": " + d.Detail + "\n"
	}
	return text
}
