package workload

import (
	"context"
	"fmt"
)

// dockerUnits are the units of the daemon in the order in which they are stopped. The
// socket is first, because a request to it would start the service again.
func dockerUnits() []string { return []string{"docker.socket", "docker.service"} }

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
