// Package manual is the provider of existing machines: a person installs the agent,
// provisioning adopts the host as the node's instance, and releasing it leaves the
// machine unchanged.
package manual

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
)

// Provider adopts hosts.
type Provider struct{}

// Name returns manual.
func (Provider) Name() string { return "manual" }

// Creates is false: a node must be enrolled before it is provisioned.
func (Provider) Creates() bool { return false }

// Ensure adopts the host. Its name is the machine's id.
func (Provider) Ensure(_ context.Context, _ activities.Resource, host string) (string, error) {
	if host == "" {
		return "", schema.NewError(schema.KindInvalidRequest, "the manual provider needs the node's host name")
	}
	return host, nil
}

// Release does nothing: the machine belongs to its owner.
func (Provider) Release(context.Context, activities.Resource) error { return nil }
