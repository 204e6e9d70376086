package workload

import (
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
)

// CordonFlag is the durable cordon of the node.
type CordonFlag struct {
	mu       sync.Mutex
	state    disk.StateDir
	cordoned bool
	// changed is called after the cordon changed. It must not block.
	changed func()
}

// cordonFile is the stored form of the cordon.
type cordonFile struct {
	Cordoned bool      `json:"cordoned"`
	Since    time.Time `json:"since"`
}

// LoadCordon reads the cordon. changed is called after it changed.
func LoadCordon(s disk.StateDir, changed func()) (*CordonFlag, error) {
	var f cordonFile
	if _, err := s.ReadJSON(s.File("cordon.json"), &f); err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "cannot read whether the node is cordoned").WithNext(
			`write {"cordoned":true} to ` + s.File("cordon.json") + " and restart the agent; then gpuaas node uncordon NODE, if workloads may run")
	}
	return &CordonFlag{state: s, cordoned: f.Cordoned, changed: changed}, nil
}

// Cordoned reports whether new workloads are refused.
func (f *CordonFlag) Cordoned() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cordoned
}

// Set stores the cordon before it takes effect. Setting the current value writes
// nothing.
func (f *CordonFlag) Set(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cordoned == on {
		return nil
	}
	if err := f.state.WriteJSON(f.state.File("cordon.json"), cordonFile{Cordoned: on, Since: time.Now().UTC()}); err != nil {
		return err
	}
	f.cordoned = on
	f.changed()
	return nil
}
