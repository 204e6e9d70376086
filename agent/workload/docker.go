package workload

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
)

// dockerDriver lists and stops the containers with one label, through the socket of the
// Docker daemon. Before it signals a container, it records the container's restart policy
// and removes it, so that the daemon does not start the container again; Restore sets the
// recorded policy. It sends the container's own stop signal.
type dockerDriver struct {
	watcher
	api      dockerAPI
	label    string
	cordoned func() bool
	marks    stopMarks
	daemon   unitStopper

	// changing is held while the driver changes a restart policy or the daemon.
	changing sync.Mutex
	policies policyRecord
}

// NewDocker makes the driver of labeled containers.
func NewDocker(c Config) (Driver, error) {
	socket, err := DockerSocket(cmp.Or(c.DockerHost, DefaultDockerHost))
	if err != nil {
		return nil, err
	}
	d := &dockerDriver{
		watcher: watcher{c.Changed, c.Log}, api: newDockerAPI(socket), label: c.Label, cordoned: c.Cordoned,
		marks:    stopMarks{file: stateFile{c.State, "docker-stops.json", c.ReadOnly}, log: c.Log},
		policies: policyRecord{file: stateFile{c.State, "docker-policies.json", c.ReadOnly}},
		daemon: unitStopper{enabled: c.StopDocker, what: "the Docker daemon", names: dockerUnits(), units: systemBus(),
			file: stateFile{c.State, "docker-daemon.json", c.ReadOnly}},
	}
	return d, cmp.Or(d.marks.load(), d.policies.load())
}

// stateFile is a file of the state folder that belongs to one driver.
type stateFile struct {
	state    disk.StateDir
	name     string
	readOnly bool // writes change nothing
}

func (f stateFile) read(v any) (ok bool, err error) {
	return f.state.ReadJSON(f.state.File(f.name), v)
}

func (f stateFile) write(v any) error {
	if f.readOnly {
		return nil
	}
	return f.state.WriteJSON(f.state.File(f.name), v)
}

// List implements Driver. Containers that the daemon would start again come first, so that a
// drain stops them first.
func (d *dockerDriver) List(ctx context.Context) ([]task.Workload, error) {
	before := d.marks.all()
	running, err := d.running(ctx)
	if err != nil {
		if down, _ := d.daemon.down(ctx); down {
			return []task.Workload{}, nil
		}
		return nil, err
	}
	d.marks.forget(before, func(id string) bool {
		return slices.ContainsFunc(running, func(c container) bool { return c.ID == id })
	})
	d.order(running)
	list := make([]task.Workload, len(running))
	for i, c := range running {
		list[i] = task.Workload{Name: c.name(), Kind: inventory.DriverDocker, Since: c.State.StartedAt.UTC(), Stopping: d.marks.has(c.ID)}
	}
	return list, nil
}

// running returns the running containers with the label. One that ends meanwhile is not part
// of it.
func (d *dockerDriver) running(ctx context.Context) ([]container, error) {
	api, err := d.api.connect(ctx)
	if err != nil {
		return nil, err
	}
	found, err := api.labeled(ctx, d.label)
	if err != nil {
		return nil, err
	}
	list := make([]container, 0, len(found))
	for id := range found {
		c, ok, err := api.inspect(ctx, id)
		if err != nil {
			return nil, err
		}
		if ok && c.State.Running {
			list = append(list, c)
		}
	}
	return list, nil
}

// order sorts containers in the order in which a drain stops them.
func (d *dockerDriver) order(list []container) {
	rank := map[string]int{}
	for _, c := range list {
		if !c.HostConfig.RestartPolicy.restarts() && !d.policies.has(c.ID) {
			rank[c.ID] = 1
		}
	}
	slices.SortFunc(list, func(a, b container) int {
		return cmp.Or(cmp.Compare(rank[a.ID], rank[b.ID]), strings.Compare(a.Name, b.Name))
	})
}

// Stop implements Driver.
func (d *dockerDriver) Stop(ctx context.Context, name string) error {
	api, id, err := d.find(ctx, name)
	if err != nil || id == "" {
		return err
	}
	c, ok, err := d.disarm(ctx, api, id)
	if err != nil || !ok {
		return err
	}
	first, err := d.marks.add(c.ID)
	if err != nil || !first {
		return err
	}
	return api.kill(ctx, c.ID, cmp.Or(c.Config.StopSignal, "SIGTERM"))
}

// Kill implements Driver.
func (d *dockerDriver) Kill(ctx context.Context, name string) error {
	api, id, err := d.find(ctx, name)
	if err != nil || id == "" {
		return err
	}
	if _, ok, err := d.disarm(ctx, api, id); err != nil || !ok {
		return err
	}
	return api.kill(ctx, id, "SIGKILL")
}

// find returns the ID of the running container with a name, "" if there is none.
func (d *dockerDriver) find(ctx context.Context, name string) (api dockerAPI, id string, err error) {
	if api, err = d.api.connect(ctx); err != nil {
		return api, "", err
	}
	found, err := api.labeled(ctx, d.label)
	if err != nil {
		return api, "", err
	}
	for id, names := range found {
		if slices.Contains(names, "/"+name) {
			return api, id, nil
		}
	}
	return api, "", nil
}

// disarm removes the restart policy of a container after it recorded the policy. ok is false
// if the container does not exist.
func (d *dockerDriver) disarm(ctx context.Context, api dockerAPI, id string) (c container, ok bool, err error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	c, ok, err = api.inspect(ctx, id)
	if err != nil || !ok || !c.HostConfig.RestartPolicy.restarts() {
		return c, ok, err
	}
	if err := d.policies.put(id, recordedPolicy{Container: c.name(), Policy: c.HostConfig.RestartPolicy}); err != nil {
		return c, true, err
	}
	return c, true, api.setPolicy(ctx, id, restartPolicy{Name: "no"})
}

// Run implements Driver. While the node is not cordoned, it tries again to restore what
// Restore could not.
func (d *dockerDriver) Run(ctx context.Context) {
	d.watch(ctx, func(ctx context.Context) ([]task.Workload, error) {
		if err := d.retryRestore(ctx); err != nil && ctx.Err() == nil {
			d.log.Warn("cannot restore the containers' restart policies", "err", err.Error())
		}
		return d.List(ctx)
	})
}
