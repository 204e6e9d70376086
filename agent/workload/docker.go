package workload

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
)

// dockerDriver lists and stops the containers with one label, through the docker
// command. Stop first removes the container's restart policy, so that
// the daemon does not restart it, and then sends the container's own stop signal.
type dockerDriver struct {
	program
	label    string
	state    disk.StateDir
	readOnly bool

	mu sync.Mutex
	// asked is when a container, by id, was asked to stop; durable before it is. A
	// change replaces the map.
	asked map[string]time.Time
}

// NewDocker makes the driver of labeled containers.
func NewDocker(c Config) (Driver, error) {
	d := &dockerDriver{program: program{"docker", c.Changed, c.Log}, label: c.Label, state: c.State, readOnly: c.ReadOnly, asked: map[string]time.Time{}}
	_, err := d.state.ReadJSON(d.file(), &d.asked)
	return d, err
}

func (d *dockerDriver) file() string { return d.state.File("docker-stops.json") }

// container is a line of docker ps in JSON.
type container struct {
	ID        string `json:"ID"`
	Names     string `json:"Names"`
	CreatedAt string `json:"CreatedAt"`
}

func (d *dockerDriver) ps(ctx context.Context) ([]container, error) {
	out, err := d.run(ctx, "ps", "--no-trunc", "--filter", "label="+d.label, "--format", "{{json .}}")
	if err != nil {
		return nil, err
	}
	var list []container
	for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
		var c container
		if err := dec.Decode(&c); err != nil || c.ID == "" || c.Names == "" {
			return nil, fmt.Errorf("unexpected output of docker ps: %q", text.Truncate(out))
		}
		list = append(list, c)
	}
	return list, nil
}

// List implements Driver.
func (d *dockerDriver) List(ctx context.Context) ([]task.Workload, error) {
	d.mu.Lock()
	before := d.asked
	d.mu.Unlock()
	running, err := d.ps(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(before, running)
	list := []task.Workload{}
	for _, c := range running {
		since, _ := time.Parse("2006-01-02 15:04:05 -0700 MST", c.CreatedAt) // zero means unknown
		_, stopping := d.asked[c.ID]
		list = append(list, task.Workload{Name: c.Names, Kind: inventory.DriverDocker, Since: since.UTC(), Stopping: stopping})
	}
	sortWorkloads(list)
	return list, nil
}

// Stop implements Driver.
func (d *dockerDriver) Stop(ctx context.Context, name string) error {
	c, ok, err := d.find(ctx, name)
	if err != nil || !ok {
		return err
	}
	if _, err := d.run(ctx, "update", "--restart=no", c.ID); err != nil {
		return err
	}
	signal, err := d.run(ctx, "inspect", "--format", "{{.Config.StopSignal}}", c.ID)
	if err != nil {
		return err
	}
	first, err := d.intend(c.ID)
	if err != nil || !first {
		return err
	}
	_, err = d.run(ctx, "kill", "--signal="+cmp.Or(strings.TrimSpace(signal), "SIGTERM"), c.ID)
	return err
}

// Kill implements Driver.
func (d *dockerDriver) Kill(ctx context.Context, name string) error {
	c, ok, err := d.find(ctx, name)
	if err != nil || !ok {
		return err
	}
	_, err = d.run(ctx, "kill", c.ID)
	return err
}

// Run implements Driver.
func (d *dockerDriver) Run(ctx context.Context) { d.watch(ctx, d.List) }

func (d *dockerDriver) find(ctx context.Context, name string) (c container, ok bool, err error) {
	running, err := d.ps(ctx)
	for _, c := range running {
		if c.Names == name {
			return c, true, err
		}
	}
	return container{}, false, err
}

// intend records that a container is about to be asked to stop, and reports whether this
// is the first time.
func (d *dockerDriver) intend(id string) (first bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.asked[id]; known {
		return false, nil
	}
	next := maps.Clone(d.asked)
	next[id] = time.Now().UTC()
	if err := d.state.WriteJSON(d.file(), next); err != nil {
		return false, err
	}
	d.asked = next
	return true, nil
}

// forget drops the marks of containers that do not run, so that a restarted
// container can be stopped again. Only marks made before docker ps began are dropped.
func (d *dockerDriver) forget(before map[string]time.Time, running []container) {
	next := maps.Clone(d.asked)
	maps.DeleteFunc(next, func(id string, at time.Time) bool {
		return before[id].Equal(at) && !slices.ContainsFunc(running, func(c container) bool { return c.ID == id })
	})
	if d.readOnly || len(next) == len(d.asked) {
		return
	}
	if err := d.state.WriteJSON(d.file(), next); err != nil {
		d.log.Warn("docker stop marks not stored", "err", err.Error())
	}
	d.asked = next
}
