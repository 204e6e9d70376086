package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// kubeNode is the part of a Node object that the driver needs.
type kubeNode struct {
	Metadata struct {
		kubeMeta
		ManagedFields []struct {
			Manager string `json:"manager"`
			Fields  struct {
				Spec map[string]any `json:"f:spec"`
			} `json:"fieldsV1"`
		} `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool `json:"unschedulable"`
	} `json:"spec"`
	Status struct {
		NodeInfo struct {
			MachineID string `json:"machineID"`
		} `json:"nodeInfo"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// cordonedByOther reports whether someone else than the agent made the Node's
// spec.unschedulable what it is. It is false if the API server does not say who did.
func (n kubeNode) cordonedByOther() bool {
	for _, m := range n.Metadata.ManagedFields {
		if _, owns := m.Fields.Spec["f:unschedulable"]; owns && m.Manager != kubeManager {
			return true
		}
	}
	return false
}

// ready reports whether the node's kubelet works.
func (n kubeNode) ready() bool {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// kubeCordon is the record of a cordon that the driver set. It is durable before the Node
// object changes, and until the driver has removed the cordon. Without a record, a cordon
// belongs to someone else and stays.
type kubeCordon struct {
	Since time.Time `json:"since,omitzero"`
}

// conflictTries is how often a change of an object is tried that meets another change.
const conflictTries = 3

// cordonFresh is how long a drain relies on a cordon that it has seen.
const cordonFresh = 5 * time.Second

// Cordon implements Cordoner: it makes the node's spec.unschedulable true, and false again only
// if the driver made it true.
func (d *kubeDriver) Cordon(ctx context.Context, on bool) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	return d.setCordon(ctx, on)
}

// setCordon is Cordon. The caller holds changing. Between reading the Node object and changing
// it, the kubelet may change it, too.
func (d *kubeDriver) setCordon(ctx context.Context, on bool) (err error) {
	for range conflictTries {
		if err = d.tryCordon(ctx, on); kubeStatus(err) != http.StatusConflict {
			return err
		}
	}
	return err
}

func (d *kubeDriver) tryCordon(ctx context.Context, on bool) error {
	d.cordonSeen = time.Time{}
	var own kubeCordon
	if _, err := d.cordonFile.read(&own); err != nil {
		return err
	}
	if !on && own.Since.IsZero() {
		return nil
	}
	api, err := d.connect()
	if err != nil {
		return err
	}
	n, err := api.readNode(ctx)
	switch {
	case !on && kubeStatus(err) == http.StatusNotFound:
		return d.cordonFile.write(kubeCordon{})
	case err != nil:
		return err
	case on && n.Spec.Unschedulable:
		d.cordonSeen = time.Now()
		return nil
	case on:
		return d.cordonNode(ctx, api, n, own)
	case n.Spec.Unschedulable && !n.cordonedByOther():
		if err := api.setUnschedulable(ctx, n, false); err != nil {
			return err
		}
	}
	return d.cordonFile.write(kubeCordon{})
}

// cordonNode makes a Node unschedulable that is not. The record precedes the change.
func (d *kubeDriver) cordonNode(ctx context.Context, api *kubeAPI, n kubeNode, own kubeCordon) error {
	if own.Since.IsZero() {
		if err := d.cordonFile.write(kubeCordon{Since: time.Now().UTC()}); err != nil {
			return err
		}
	}
	if err := api.setUnschedulable(ctx, n, true); err != nil {
		return err
	}
	d.cordonSeen = time.Now()
	return nil
}

// setUnschedulable changes a Node object unless it changed since it was read.
func (a *kubeAPI) setUnschedulable(ctx context.Context, n kubeNode, on bool) error {
	var value any // null removes the field, as kubectl uncordon does
	if on {
		value = true
	}
	return a.call(ctx, http.MethodPatch, kubePath(kubeCore, "nodes", a.node), url.Values{"fieldManager": {kubeManager}}, map[string]any{
		"metadata": map[string]any{"uid": n.Metadata.UID, "resourceVersion": n.Metadata.ResourceVersion},
		"spec":     map[string]any{"unschedulable": value},
	}, nil)
}

// ensureCordon cordons the node unless a drain has seen the cordon a moment ago. It prevents
// an eviction from a node on which the pod may be started again.
func (d *kubeDriver) ensureCordon(ctx context.Context) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	if !d.cordoned() {
		return errors.New("the node is not cordoned, so no pod is evicted")
	}
	if time.Since(d.cordonSeen) < cordonFresh {
		return nil
	}
	if err := d.setCordon(ctx, true); err != nil {
		return fmt.Errorf("no pod is evicted before the node is unschedulable: %w", err)
	}
	return nil
}

// reconcile restores what should be so: a node that the agent cordoned is unschedulable, also
// after its Node object was created again, and what an uncordon could not restore is restored.
func (d *kubeDriver) reconcile(ctx context.Context) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if d.cordoned() {
		if down, _ := d.unit.down(ctx); down {
			return nil
		}
		return d.setCordon(ctx, true)
	}
	return errors.Join(d.unit.restore(ctx), d.setCordon(ctx, false))
}
