package fleet

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// parallel is the number of nodes that are registered and enrolled at a time.
const parallel = 8

// inventory matches nodes with identities: it registers missing nodes and requests
// a bundle for each node without an identity. It may be run again after
// any failure.
type nodeInventory struct {
	conf  Config
	admin *admin
	// ready is called with each node that has an identity or a token for one.
	ready func(i int, c agent.Config)

	mu       sync.Mutex
	prepared int
	left     []error // one per node that was left out
}

// run prepares all nodes. It leaves out a node that it cannot prepare. It returns an
// error only if it cannot list the nodes or prepare any of them.
func (v *nodeInventory) run(ctx context.Context) error {
	known, err := v.admin.nodes(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(parallel)
	for i := range v.conf.Size {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c, err := v.prepare(ctx, i, known)
			v.note(err)
			if err == nil {
				v.ready(i, c)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if v.prepared == 0 && ctx.Err() == nil {
		return v.left[0]
	}
	return ctx.Err()
}

func (v *nodeInventory) note(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.left = append(v.left, err)
		return
	}
	v.prepared++
}

// state returns how many nodes are prepared, how many were left out, and the error of
// the last one.
func (v *nodeInventory) state() (prepared, left int, why error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.left) > 0 {
		why = v.left[len(v.left)-1]
	}
	return v.prepared, len(v.left), why
}

// prepare returns the configuration of one node's agent.
func (v *nodeInventory) prepare(ctx context.Context, i int, known map[string]wire.NodeView) (agent.Config, error) {
	host := v.conf.host(i)
	node, there := known[host]
	if !there {
		var err error
		node, err = v.admin.register(ctx, wire.RegisterNodeRequest{Host: host, SKU: v.conf.SKU, RegionCode: v.conf.Region, Labels: v.conf.labels(i)})
		if err != nil {
			return agent.Config{}, named(host, err)
		}
	}
	if node.State == lifecycle.NodeRemoved || node.State == lifecycle.NodeRemoving {
		return agent.Config{}, schema.NewError(schema.KindInvalidRequest, "%s is %s, and a removed node cannot return", host, node.State).
			WithReason("node_removed").WithNext("use a different --prefix")
	}
	f := v.conf.folder(host)
	c, found, err := f.read()
	if err == nil && (!found || c.NodeID != node.ID) {
		c, err = f.begin(node.ID)
	}
	if err != nil {
		return agent.Config{}, err
	}
	var token string
	if !f.enrolled() {
		if c, token, err = v.bundle(ctx, f, c, node.State); err != nil {
			return agent.Config{}, named(host, err)
		}
	}
	if v.conf.NodeURL != "" {
		c.APIURL = v.conf.NodeURL
	}
	conf := f.config(c)
	conf.EnrollmentToken = schema.NewSecret(token)
	err = conf.Validate()
	return conf, err
}

// bundle requests a bundle and stores it without its token: by an enrollment, or by a
// reissue for a node that had an identity.
func (v *nodeInventory) bundle(ctx context.Context, f folder, c nodeRecord, state lifecycle.NodeState) (nodeRecord, string, error) {
	switch state {
	case lifecycle.NodeRegistered, lifecycle.NodeBootstrapIssued, lifecycle.NodeEnrolling:
		b, err := v.enroll(ctx, f, &c)
		if err != nil {
			return c, "", err
		}
		c, err = f.saveBundle(c, b)
		return c, b.EnrollmentToken, err
	}
	answer, err := v.admin.act(ctx, c.NodeID, "reissue-enrollment", schema.NewID(), wire.LifecycleRequest{
		Reason: "the fleet's state contains no identity"})
	if err != nil {
		return c, "", err
	}
	if answer.RecoveryBundle == nil {
		return c, "", schema.NewError(schema.KindInternal, "the admin API returned no bundle").WithReason("no_bundle")
	}
	c, err = f.saveBundle(c, answer.RecoveryBundle.BootstrapBundle)
	return c, answer.RecoveryBundle.EnrollmentToken, err
}

// enroll starts the enrollment, or continues the one that an earlier fleet started. If
// that one has ended, it starts another.
func (v *nodeInventory) enroll(ctx context.Context, f folder, c *nodeRecord) (trust.BootstrapBundle, error) {
	for try := 1; ; try++ {
		answer, err := v.admin.act(ctx, c.NodeID, "enroll", c.EnrollKey, wire.LifecycleRequest{})
		if err == nil && answer.BootstrapBundle != nil {
			return *answer.BootstrapBundle, nil
		}
		if err == nil {
			err = schema.NewError(schema.KindInternal, "the admin API returned no bundle").WithReason("no_bundle")
		}
		if try == 2 || schema.KindOf(err) == schema.KindOperationInProgress || ctx.Err() != nil {
			return trust.BootstrapBundle{}, err
		}
		c.EnrollKey = schema.NewID()
		if err := f.save(*c); err != nil {
			return trust.BootstrapBundle{}, err
		}
	}
}

// named adds the node's host name to an error.
func named(host string, err error) error {
	e := schema.AsError(err)
	return &schema.Error{Kind: e.Kind, Message: host + ": " + e.Message, Reason: e.Reason, Next: e.Next, Err: err}
}
