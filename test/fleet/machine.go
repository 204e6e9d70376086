package fleet

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/gpuaas/gpuaas/deploy/dev/simulate"
)

// errRebooted is why the agent of a machine that restarts ends.
var errRebooted = errors.New("the machine restarts")

// newMachine makes the simulated machine of the node whose agent has this state folder.
func newMachine(faults, stateDir string) *simulate.Machine {
	folder := filepath.Dir(stateDir)
	return simulate.New(simulate.Config{
		Host: filepath.Base(folder), Faults: faults, State: filepath.Join(folder, "simulated.json"), Now: time.Now,
	})
}

// reboot restarts the simulated machine: its agent ends at once, and the next one starts when the
// machine is on again.
func (m *member) reboot(context.Context) error {
	off, err := m.machine.Reboot()
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.off = off
	m.mu.Unlock()
	m.endAfter(0, errRebooted)
	return nil
}
