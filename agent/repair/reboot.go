package repair

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// rebootTries bounds how often a reboot is begun, and rebootTimeout each try.
	rebootTries   = 3
	rebootTimeout = 30 * time.Second
)

// The reasons of a failed task, at the begin of its message.
const (
	// ReasonOtherBoot: the node has another boot ID than the task names, so it rebooted already.
	ReasonOtherBoot = "other_boot"
	// ReasonInUse: processes use the GPUs.
	ReasonInUse = "gpu_in_use"
	// ReasonNoGPU: the node has no such GPU.
	ReasonNoGPU = "no_such_gpu"
	// ReasonReset: a step of the reset failed.
	ReasonReset = "reset_failed"
)

// failed is a KindTaskFailed whose message begins with the reason.
func failed(reason, format string, args ...any) error {
	return schema.NewError(schema.KindTaskFailed, reason+": "+format, args...).WithReason(reason)
}

// Reboot runs node.reboot. The machine restarts after the server has the task's result, so that a
// lost result never causes a second restart.
type Reboot struct {
	// BootID is the boot ID of the machine.
	BootID string
	// Start begins the restart of the machine and returns.
	Start func(ctx context.Context) error
	// Now is the server's time as far as it is known.
	Now func() time.Time
	Log *slog.Logger
}

// Check refuses params that are not those of a reboot.
func (Reboot) Check(params json.RawMessage) error {
	_, err := rebootParams(params)
	return err
}

func rebootParams(params json.RawMessage) (p task.RebootParams, err error) {
	err = schema.DecodeStrict(params, wire.MaxBodyBytes, &p)
	if err == nil && p.BootID == "" {
		err = schema.NewError(schema.KindInvalidRequest, "boot_id is missing")
	}
	return p, err
}

// Run checks that the machine is still in the boot that the task ends. It changes nothing.
func (r Reboot) Run(_ context.Context, t execution.Task) (any, error) {
	p, err := rebootParams(t.Params)
	if err != nil {
		return nil, err
	}
	if p.BootID != r.BootID {
		return nil, failed(ReasonOtherBoot, "the node has the boot %s, and the task is for %s: it rebooted already",
			text.Truncate(r.BootID), text.Truncate(p.BootID))
	}
	return struct{}{}, nil
}

// Reported restarts the machine. It may be called again after a crash: a machine that has rebooted
// meanwhile, or whose task expired, does not restart. It never stops the agent, because the machine
// ends it; if no restart can be begun, the server misses another boot ID.
func (r Reboot) Reported(p task.Payload) bool {
	params, err := rebootParams(p.Params)
	log := r.Log.With("task_id", p.TaskID)
	switch {
	case err != nil || params.BootID != r.BootID:
		return false
	case r.Now().After(p.ExpiresAt):
		log.Error("the machine does not restart: the task expired before the server had its result", "expired_at", text.FormatTime(p.ExpiresAt))
		return false
	}
	log.Warn("the machine restarts", "boot_id", r.BootID)
	for range rebootTries {
		ctx, cancel := context.WithTimeout(context.Background(), rebootTimeout)
		err := r.Start(ctx)
		cancel()
		if err == nil {
			return false
		}
		log.Error("cannot restart the machine", "err", err.Error())
	}
	return false
}
