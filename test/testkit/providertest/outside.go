package providertest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/recorder"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
)

// Outside implements provider.Outside and its extensions for a site in memory.
type Outside struct{ Site *recorder.Site }

var (
	_ provider.Outside = Outside{}
	_ provider.Prints  = Outside{}
	_ provider.Details = Outside{}
)

// Machines implements provider.Outside.
func (o Outside) Machines(*testing.T) []string {
	var ids []string
	for _, m := range o.Site.All() {
		ids = append(ids, m.ID)
	}
	return ids
}

// Leftovers implements provider.Outside.
func (o Outside) Leftovers(*testing.T) []string { return o.Site.Disks() }

// Foreign implements provider.Outside.
func (o Outside) Foreign(_ *testing.T, host string) string {
	id := o.Site.Add(recorder.Record{Host: host}).ID
	o.Site.Advance(id)
	return id
}

// Destroy implements provider.Outside.
func (o Outside) Destroy(_ *testing.T, id string) { o.Site.Remove(id) }

// Stop implements provider.Outside.
func (o Outside) Stop(t *testing.T, id string) {
	t.Helper()
	o.change(t, id, func(r *recorder.Record) { r.Phase = machine.Stopped })
}

// PoweredOn implements provider.Outside.
func (o Outside) PoweredOn(_ *testing.T, id string) bool {
	m, _ := o.Site.Get(id)
	return m.Phase == machine.Running
}

// Break implements provider.Outside.
func (o Outside) Break(t *testing.T, id string) bool {
	t.Helper()
	o.change(t, id, func(r *recorder.Record) { r.Phase = machine.Failed })
	return true
}

// Print implements provider.Prints.
func (o Outside) Print(t *testing.T, id string, data []byte) {
	t.Helper()
	o.change(t, id, func(r *recorder.Record) { r.Console = data })
}

// Explain implements provider.Details.
func (o Outside) Explain(t *testing.T, id, detail string) {
	t.Helper()
	o.change(t, id, func(r *recorder.Record) { r.Detail = detail })
}

func (o Outside) change(t *testing.T, id string, change func(r *recorder.Record)) {
	t.Helper()
	require.True(t, o.Site.Change(id, change), "there is no machine %s", id)
}
