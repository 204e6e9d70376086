package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// dockerDaemon stops the Docker daemon at the end of a drain and starts it again, if the
// configuration asks for that.
type dockerDaemon struct {
	enabled bool
	units   bus
	file    stateFile
}

// stoppedDaemon is the record of a daemon that the driver stopped. It is durable before the
// first unit is stopped, and until all are started again.
type stoppedDaemon struct {
	// Units were active, in the order in which they are stopped.
	Units []string `json:"units"`
}

// dockerUnits are the units of the daemon in the order in which they are stopped. The
// socket is first, because a request to it would start the service again.
func dockerUnits() []string { return []string{"docker.socket", "docker.service"} }

// record returns the units that the driver stopped, none if it did not stop the daemon.
func (d dockerDaemon) record() ([]string, error) {
	var r stoppedDaemon
	_, err := d.file.read(&r)
	return r.Units, err
}

// down reports whether the driver stopped the daemon and it is still stopped.
func (d dockerDaemon) down(ctx context.Context) (bool, error) {
	units, err := d.record()
	if err != nil || len(units) == 0 {
		return false, err
	}
	for _, name := range units {
		if active, err := d.units.active(ctx, name); err != nil || active {
			return false, err
		}
	}
	return true, nil
}

// stop stops the units of the daemon that are active.
func (d dockerDaemon) stop(ctx context.Context) error {
	units, err := d.record()
	if err != nil {
		return err
	}
	for _, name := range dockerUnits() {
		active, err := d.units.active(ctx, name)
		if err != nil {
			return err
		}
		if active && !slices.Contains(units, name) {
			units = append(units, name)
		}
	}
	if len(units) == 0 {
		return errors.New("cannot stop the Docker daemon: no unit docker.service is active")
	}
	if err := d.file.write(stoppedDaemon{units}); err != nil {
		return err
	}
	for _, name := range units {
		if err := d.units.stopAndWait(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// restore starts the units that the driver stopped.
func (d dockerDaemon) restore(ctx context.Context) error {
	units, err := d.record()
	if err != nil || len(units) == 0 {
		return err
	}
	for _, name := range units {
		if err := d.units.startAndWait(ctx, name); err != nil {
			return err
		}
	}
	return d.file.write(stoppedDaemon{})
}

// Finish implements Restorer: it stops the daemon if the configuration asks for that.
func (d *dockerDriver) Finish(ctx context.Context) error {
	if !d.daemon.enabled {
		return nil
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	running, err := d.running(ctx)
	if err != nil {
		if down, _ := d.daemon.down(ctx); down {
			return nil
		}
		return err
	}
	if len(running) > 0 {
		return fmt.Errorf("the Docker daemon is not stopped: container %s runs", running[0].name())
	}
	return d.daemon.stop(ctx)
}
