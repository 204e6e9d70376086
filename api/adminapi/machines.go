package adminapi

import (
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// machines serves the providers of the workers and the instances of nodes.
type machines struct{ base }

// providers lists the providers in order of name. They are few: there are no pages.
func (m machines) providers(c *call) (any, error) {
	if err := m.query(c).check(); err != nil {
		return nil, err
	}
	all, err := m.Machines.Providers(c.Context())
	return machine.Providers{Providers: append([]machine.Provider{}, all...)}, err
}

// list lists instances, newest first. Those that ended are part of it.
func (m machines) list(c *call) (any, error) {
	q := m.listQuery(c)
	of := InstanceQuery{Page: q.page(2), NodeID: q.node(), States: words(q, "state", instance.States()...), Providers: words[string](q, "provider")}
	return page(q, "instances", of, m.Machines.ListInstances)
}

// show returns one instance.
func (m machines) show(c *call) (any, error) {
	if err := m.query(c).check(); err != nil {
		return nil, err
	}
	id, err := c.id("instance_id", "gpuaas instance list")
	if err != nil {
		return nil, err
	}
	return m.Machines.Instance(c.Context(), id)
}
