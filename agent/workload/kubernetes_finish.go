package workload

import (
	"context"
	"fmt"
	"net/http"
)

// Finish implements Restorer: it stops the node's unit of Kubernetes if the configuration asks
// for that, after the cluster's virtual address moved to another server. It never stops the
// last server.
func (d *kubeDriver) Finish(ctx context.Context) error {
	if !d.unit.enabled {
		return nil
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	if down, err := d.unit.down(ctx); down || err != nil {
		return err
	}
	api, err := d.connect()
	if err != nil {
		return err
	}
	node, err := api.readNode(ctx)
	if err != nil {
		return err
	}
	pods, err := d.pods(ctx, api)
	if err != nil {
		return err
	}
	unit := d.unit.names[0]
	if len(pods) > 0 {
		return fmt.Errorf("%s is not stopped: pod %s runs", unit, pods[0].name())
	}
	server, last, err := api.lastServer(ctx, node, true)
	if err != nil {
		return err
	}
	if last {
		d.log.Warn("the unit of Kubernetes is not stopped", "unit", unit, "reason", server.Name)
		return nil
	}
	if d.lease != "" && node.server() {
		if err := api.moveLease(ctx, d.lease); err != nil {
			return fmt.Errorf("%s is not stopped: %w", unit, err)
		}
	}
	return d.unit.stop(ctx)
}

// Restore implements Restorer: it starts the unit that Finish stopped. Evicted pods run on other
// nodes and do not return.
func (d *kubeDriver) Restore(ctx context.Context, _ ...string) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	return d.unit.restore(ctx)
}

// Leave implements Leaver: it deletes the node's Node object. A kubelet's rights do not suffice
// for that, so the error names the command to type.
func (d *kubeDriver) Leave(ctx context.Context) error {
	api, err := d.connect()
	if err != nil {
		return err
	}
	n, err := api.readNode(ctx)
	if err == nil {
		err = api.deleteNode(ctx, n.Metadata.UID)
	}
	if err = unlessKube(err, http.StatusNotFound); err != nil {
		return fmt.Errorf("the node's Node object stays in the cluster: %w; delete it: kubectl delete node %s", err, api.node)
	}
	return nil
}
