package workload

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
)

// systemdDriver lists and stops the services and scopes of one slice, and of the
// slices below it. systemd itself prevents a second stop request: it joins the
// running job. A unit's own TimeoutStopSec may end it by force
// before the drain's deadline.
type systemdDriver struct {
	program
	slice string
}

// NewSystemd makes the driver of a systemd slice.
func NewSystemd(c Config) (Driver, error) {
	return &systemdDriver{program{"systemctl", c.Changed, c.Log}, c.Slice}, nil
}

// List implements Driver.
func (d *systemdDriver) List(ctx context.Context) ([]task.Workload, error) {
	out, err := d.run(ctx, "show", "--type=service,scope", "--timestamp=unix", "--no-pager",
		"--property=Id,Slice,ActiveState,ActiveEnterTimestamp", "*")
	if err != nil {
		return nil, err
	}
	list := []task.Workload{}
	for block := range strings.SplitSeq(out, "\n\n") {
		unit := properties(block)
		state := unit["ActiveState"]
		running := state == "active" || state == "activating" || state == "reloading" || state == "deactivating"
		if unit["Id"] == "" || !running || !d.holds(unit["Slice"]) {
			continue
		}
		list = append(list, task.Workload{
			Name: unit["Id"], Kind: inventory.DriverSystemd, Since: unixTime(unit["ActiveEnterTimestamp"]), Stopping: state == "deactivating",
		})
	}
	sortWorkloads(list)
	return list, nil
}

// holds reports whether a unit's slice is the driver's or below it: a-b.slice is
// below a.slice.
func (d *systemdDriver) holds(slice string) bool {
	return slice == d.slice || strings.HasPrefix(slice, strings.TrimSuffix(d.slice, ".slice")+"-")
}

// Stop implements Driver.
func (d *systemdDriver) Stop(ctx context.Context, name string) error {
	_, err := d.run(ctx, "stop", "--no-block", "--", name)
	return err
}

// Kill implements Driver.
func (d *systemdDriver) Kill(ctx context.Context, name string) error {
	_, err := d.run(ctx, "kill", "--signal=SIGKILL", "--", name)
	return err
}

// Run implements Driver.
func (d *systemdDriver) Run(ctx context.Context) { d.watch(ctx, d.List) }

// properties reads KEY=value lines.
func properties(block string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(block) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		m[k] = v
	}
	return m
}

// unixTime reads systemd's @SECONDS; zero when there is none.
func unixTime(v string) time.Time {
	n, err := strconv.ParseInt(strings.TrimPrefix(v, "@"), 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}
