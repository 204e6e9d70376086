package server

import (
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/daemon"
)

// timelyGrants withholds dispatch while the clocks of this replica and the database differ: the
// time in a lease grant is the database's and that in its key's delegation is the replica's, and
// nodes keep the later of them for as long as they run.
type timelyGrants struct {
	nodeapi.Grants

	clocks *daemon.Clocks
}

// Ready implements nodeapi.Grants.
func (g timelyGrants) Ready() (changed <-chan struct{}, err error) {
	changed, err = g.Grants.Ready()
	if fault := g.clocks.Fault(daemon.ClockOfPostgres); fault != nil {
		err = fault
	}
	return changed, err
}
