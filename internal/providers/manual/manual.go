// Package manual is the provider of machines that stand already: a person
// installs the agent, provisioning adopts the host as the node's instance, and
// giving it back leaves the machine alone.
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

// Ensure adopts the host: its name is the machine's id.
func (Provider) Ensure(_ context.Context, _ activities.Resource, host string) (string, error) {
	if host == "" {
		return "", schema.Errorf(schema.KindInvalidRequest, "the manual provider needs the node's host name")
	}
	return host, nil
}

// Release leaves the machine as it is: its owner decides about it.
func (Provider) Release(context.Context, activities.Resource) error { return nil }
