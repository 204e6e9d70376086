package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Kubernetes configures the kubernetes driver.
type Kubernetes struct {
	// Kubeconfig is the path of the kubeconfig file. Defaults to the first of Kubeconfigs
	// that exists.
	Kubeconfig string
	// Node is the name of the node's Node object. Defaults to the name in the client
	// certificate of a kubelet, otherwise to the host name.
	Node string
	// StopUnit is the systemd unit that a drain stops after the last pod, "" for none.
	StopUnit string
	// VIPLease is the Lease, as namespace/name, of the cluster's virtual address, which a
	// drain moves to another server before it stops the unit. "" for none.
	VIPLease string
}

// Check lists the settings that are not valid.
func (k Kubernetes) Check() error {
	var faults []string
	if k.Kubeconfig != "" && !filepath.IsAbs(k.Kubeconfig) {
		faults = append(faults, fmt.Sprintf("GPUAAS_KUBECONFIG: %q is not an absolute path", k.Kubeconfig))
	}
	if k.Node != "" && !validKubeName(k.Node) {
		faults = append(faults, fmt.Sprintf("GPUAAS_KUBERNETES_NODE: %q is not the name of a Node object", k.Node))
	}
	if k.StopUnit != "" && (!strings.HasSuffix(k.StopUnit, ".service") || strings.ContainsAny(k.StopUnit, "/ *?[")) {
		faults = append(faults, fmt.Sprintf("GPUAAS_KUBERNETES_STOP_UNIT: %q is not the name of a .service unit", k.StopUnit))
	}
	if k.VIPLease != "" && !validLease(k.VIPLease) {
		faults = append(faults, fmt.Sprintf("GPUAAS_KUBERNETES_VIP_LEASE: %q is not namespace/name", k.VIPLease))
	}
	if k.VIPLease != "" && k.StopUnit == "" {
		faults = append(faults, "GPUAAS_KUBERNETES_VIP_LEASE has no effect without GPUAAS_KUBERNETES_STOP_UNIT")
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

// kubeDriver evicts the pods of one node of a Kubernetes cluster. By default it has the rights
// of the node's own kubelet, which the API server limits to the node and its pods.
type kubeDriver struct {
	watcher
	connections kubeConnections
	cordoned    func() bool
	cordonFile  stateFile
	unit        unitStopper
	lease       string
	warnings    podWarnings

	// changing is held while the driver changes the Node object or the unit.
	changing   sync.Mutex
	cordonSeen time.Time // when the Node object was last unschedulable

	mu      sync.Mutex
	listed  map[string]kubePod     // evictable pods of the last list, by name
	refused map[string]kubeRefusal // by UID of the pod
}

// kubeRefusal is an eviction that was refused.
type kubeRefusal struct {
	at  time.Time
	err error
}

// evictEvery is the least time between two evictions of one pod, as in kubectl drain.
const evictEvery = 5 * time.Second

// NewKubernetes makes the driver of a node of a Kubernetes cluster.
func NewKubernetes(c Config) (Driver, error) {
	k := c.Kubernetes
	d := &kubeDriver{
		watcher: watcher{c.Changed, c.Log}, connections: kubeConnections{path: k.Kubeconfig, node: k.Node, machine: machineID("/etc/machine-id")}, cordoned: c.Cordoned,
		cordonFile: stateFile{c.State, "kubernetes-cordon.json", c.ReadOnly}, lease: k.VIPLease,
		unit: unitStopper{enabled: k.StopUnit != "", names: []string{k.StopUnit}, what: "Kubernetes", units: systemBus(),
			file: stateFile{c.State, "kubernetes-unit.json", c.ReadOnly}},
	}
	var own kubeCordon
	_, err := d.cordonFile.read(&own)
	return d, err
}

func (d *kubeDriver) connect() (*kubeAPI, error) { return d.connections.connect() }

// List implements Driver. An entry of kind task.KindLastServer precedes the pods of a node that
// must not be drained.
func (d *kubeDriver) List(ctx context.Context) ([]task.Workload, error) {
	list, err := d.list(ctx)
	if err != nil {
		if down, _ := d.unit.down(ctx); down {
			return []task.Workload{}, nil
		}
	}
	return list, err
}

func (d *kubeDriver) list(ctx context.Context) ([]task.Workload, error) {
	api, err := d.connect()
	if err != nil {
		return nil, err
	}
	node, err := api.readNode(ctx)
	if err != nil {
		return nil, err
	}
	list := []task.Workload{}
	server, last, err := api.lastServer(ctx, node, d.unit.enabled)
	if err != nil {
		return nil, err
	}
	if last {
		list = append(list, server)
	}
	pods, err := d.pods(ctx, api)
	if err != nil {
		return nil, err
	}
	warnings := d.warnings.of(ctx, api, pods)
	for _, p := range pods {
		list = append(list, task.Workload{
			Name: p.name(), Kind: inventory.DriverKubernetes, Since: p.Status.StartTime.UTC(), Stopping: p.stopping(), Warning: warnings[p.Metadata.UID],
		})
	}
	return list, nil
}

// pods returns the pods that a drain must end, in the order in which it asks them.
func (d *kubeDriver) pods(ctx context.Context, api *kubeAPI) ([]kubePod, error) {
	all, err := api.pods(ctx)
	if err != nil {
		return nil, err
	}
	pods := evictablePods(all)
	byName := make(map[string]kubePod, len(pods))
	refused := map[string]kubeRefusal{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range pods {
		byName[p.name()] = p
		if r, ok := d.refused[p.Metadata.UID]; ok {
			refused[p.Metadata.UID] = r
		}
	}
	d.listed, d.refused = byName, refused
	return pods, nil
}

// find returns a pod of the last list; ok is false if the node has no such pod. A pod never
// moves to another node, and a change applies only to the UID that was listed.
func (d *kubeDriver) find(ctx context.Context, api *kubeAPI, name string) (p kubePod, ok bool, err error) {
	lookUp := func() (kubePod, bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		p, ok := d.listed[name]
		return p, ok
	}
	if p, ok = lookUp(); ok {
		return p, true, nil
	}
	if _, err := d.pods(ctx, api); err != nil {
		return p, false, err
	}
	p, ok = lookUp()
	return p, ok, nil
}

// Stop implements Driver: it evicts a pod, once the node is unschedulable. A disruption budget
// may refuse that, so Stop is called again until the pod is stopping.
func (d *kubeDriver) Stop(ctx context.Context, name string) error {
	api, err := d.connect()
	if err != nil {
		return err
	}
	p, ok, err := d.find(ctx, api, name)
	if err != nil || !ok {
		return err
	}
	if p.controller() == "" {
		return errors.New("the pod has no controller to create it again: delete it, or force the drain")
	}
	if p.critical() && d.othersListed() {
		return errors.New("pods that the cluster depends on are evicted after the others")
	}
	if err := d.ensureCordon(ctx); err != nil {
		return err
	}
	if recent := d.recentRefusal(p); recent != nil {
		return recent
	}
	err = unlessKube(api.evict(ctx, p, false), http.StatusNotFound)
	switch {
	case kubeBudget(err) != "":
		err = fmt.Errorf("%s: a disruption budget allows no eviction now; add capacity elsewhere, or change the budget", kubeBudget(err))
	case kubeStatus(err) == http.StatusForbidden:
		err = fmt.Errorf("%w; check the rights of the kubeconfig's user", err)
	}
	d.remember(p, err)
	return err
}

// othersListed reports whether the last list has pods on which the cluster does not depend.
func (d *kubeDriver) othersListed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.listed {
		if !p.critical() {
			return true
		}
	}
	return false
}

// recentRefusal returns the error of an eviction that is too recent to be repeated.
func (d *kubeDriver) recentRefusal(p kubePod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.refused[p.Metadata.UID]; time.Since(r.at) < evictEvery {
		return r.err
	}
	return nil
}

func (d *kubeDriver) remember(p kubePod, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.refused, p.Metadata.UID)
	if err != nil && d.refused != nil {
		d.refused[p.Metadata.UID] = kubeRefusal{time.Now(), err}
	}
}

// Kill implements Driver: it deletes a pod without a grace period. Pods without a controller
// are lost.
func (d *kubeDriver) Kill(ctx context.Context, name string) error {
	api, err := d.connect()
	if err != nil {
		return err
	}
	p, ok, err := d.find(ctx, api, name)
	if err != nil || !ok {
		return err
	}
	if err := d.ensureCordon(ctx); err != nil {
		return err
	}
	return unlessKube(api.deletePod(ctx, p), http.StatusNotFound)
}

// Run implements Driver. While the node is cordoned, its Node object stays unschedulable. While
// it is not, Run tries again to restore what Cordon and Restore could not.
func (d *kubeDriver) Run(ctx context.Context) {
	d.watch(ctx, func(ctx context.Context) ([]task.Workload, error) {
		if err := d.reconcile(ctx); err != nil && ctx.Err() == nil {
			d.log.Warn("cannot reconcile the Kubernetes node with the cordon", "err", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		return d.List(ctx)
	})
}
