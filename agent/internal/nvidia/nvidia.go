// Package nvidia runs nvidia-smi, NVIDIA's own command, which lists the GPUs of a machine
// and the processes that use them.
package nvidia

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
)

// Default is the name of the program, which is looked up in PATH.
const Default = "nvidia-smi"

// MaxBytes bounds the output of a query.
const MaxBytes = 256 << 10

// driverFolder exists while the kernel's GPU driver is loaded.
const driverFolder = "/proc/driver/nvidia/gpus"

// Query asks nvidia-smi, at path or Default, for the columns of a query, for example
// --query-gpu=index,uuid. It returns CSV without header and units. found is false on a
// machine that has neither the command nor the GPU driver. Errors are KindTaskFailed.
func Query(ctx context.Context, programs command.Runner, path, columns string) (out string, found bool, err error) {
	out, found, err = Run(ctx, programs, path, columns, "--format=csv,noheader,nounits")
	if err != nil {
		out = ""
	}
	return out, found, err
}

// Run runs nvidia-smi as Query does, with any arguments. It also returns what the program printed
// before it failed.
func Run(ctx context.Context, programs command.Runner, path string, args ...string) (out string, found bool, err error) {
	path, err = exec.LookPath(cmp.Or(path, Default))
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		if _, driver := os.Stat(driverFolder); driver == nil {
			return "", true, schema.NewError(schema.KindTaskFailed, "the GPU driver is loaded, and nvidia-smi is missing")
		}
		return "", false, nil
	}
	if err != nil {
		return "", true, schema.Wrap(schema.KindTaskFailed, err, "nvidia-smi cannot be run")
	}
	out, stderr, err := programs.Run(ctx, MaxBytes, path, args...)
	if err != nil {
		return out, true, schema.Wrap(schema.KindTaskFailed, err, "nvidia-smi fails: %s", text.Truncate(strings.TrimSpace(out+stderr)))
	}
	return out, true, nil
}
