package task

import (
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema/recovery"
)

// VerifyTime bounds one node.verify: the longest tests that a gate asks for, with a margin.
const VerifyTime = 40 * time.Minute

// RebootParams are the params of node.reboot. The node restarts after the server has the task's
// result, so that a reboot is never repeated because its result was lost; a heartbeat with another
// boot ID shows that it happened.
type RebootParams struct {
	// BootID is the boot that the reboot ends. The agent rejects the task if the node has another one:
	// it rebooted already.
	BootID string `json:"boot_id"`
}

// Encode returns p as params.
func (p RebootParams) Encode() Params { return encode(p) }

// ResetParams are the params of gpu.reset.
type ResetParams struct {
	// GPUs are the UUIDs of the devices to reset; empty means all.
	GPUs []string `json:"gpus,omitempty"`
}

// Encode returns p as params.
func (p ResetParams) Encode() Params { return encode(p) }

// ResetResult is the output of gpu.reset.
type ResetResult struct {
	Reset []string `json:"reset"` // UUIDs
}

// VerifyParams are the params of node.verify.
type VerifyParams struct {
	// Rung is the rung that was done before: it selects the tests. A reset needs the counts of GPUs
	// and links and the shortest diagnosis; a replacement needs the longest.
	Rung recovery.Rung `json:"rung"`
	// GPUs is the number of GPUs that the node must have.
	GPUs int `json:"gpus"`
}

// Encode returns p as params.
func (p VerifyParams) Encode() Params { return encode(p) }

// VerifyResult is the output of node.verify.
type VerifyResult struct {
	OK     bool            `json:"ok"`
	BootID string          `json:"boot_id"`
	Tests  []recovery.Test `json:"tests"`
}

func encode(p any) Params {
	raw, _ := json.Marshal(p) //nolint:errchkjson // strings and numbers always encode //workflowcheck:ignore
	return raw
}
