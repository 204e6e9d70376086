package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Limits of a verification.
const (
	sampleTimeout = 2 * time.Minute
	burnInTimeout = 15 * time.Minute
	maxTests      = 64
	maxDetail     = 256
)

// Verify runs node.verify.
type Verify struct {
	BootID string
	// Health makes one sample of the host and returns what the checkers found, and the number of GPUs
	// that the driver lists.
	Health func(ctx context.Context, gpus int) (found []health.Finding, listed int, err error)
	// WriteDisk writes and reads a file where the agent's state is, and returns the figures.
	WriteDisk func(ctx context.Context) (detail string, err error)
	// DCGM is the name or path of dcgmi.
	DCGM string
	// BurnIn is the command of the longest test, its path first. Empty means none.
	BurnIn  []string
	Outside Outside
}

// Check refuses params that are not those of a verification.
func (Verify) Check(params json.RawMessage) error {
	_, err := verifyParams(params)
	return err
}

func verifyParams(params json.RawMessage) (p task.VerifyParams, err error) {
	if err := schema.DecodeStrict(params, wire.MaxBodyBytes, &p); err != nil {
		return p, err
	}
	rungs := append([]recovery.Rung{""}, recovery.Rungs()...)
	if !slices.Contains(rungs, p.Rung) {
		return p, schema.NewError(schema.KindInvalidRequest, "rung must be one of %s", text.Printable(fmt.Sprintf("%q", rungs), maxDetail))
	}
	if p.GPUs < 0 || p.GPUs > maxGPUs {
		return p, schema.NewError(schema.KindInvalidRequest, "gpus must be 0 to %d", maxGPUs)
	}
	return p, nil
}

// diagnosis is the level of dcgmi diag after a rung: 1 takes half a minute, 2 two minutes, and 3 a
// quarter of an hour.
func diagnosis(rung recovery.Rung) (level string, limit time.Duration) {
	switch rung {
	case recovery.RungReboot:
		return "2", 8 * time.Minute
	case recovery.RungReplace:
		return "3", 20 * time.Minute
	}
	return "1", 3 * time.Minute
}

// Run tests the node. A test that fails is part of the result and no error. It may be repeated.
func (v Verify) Run(ctx context.Context, t execution.Task) (any, error) {
	p, err := verifyParams(t.Params)
	if err != nil {
		return nil, err
	}
	programs := command.Runner{Dir: t.Dir, Output: t.Output}
	r := task.VerifyResult{BootID: v.BootID, Tests: []recovery.Test{}}
	add := func(tests ...recovery.Test) {
		for _, one := range tests {
			if one.Detail = text.Printable(one.Detail, maxDetail); len(r.Tests) < maxTests {
				r.Tests = append(r.Tests, one)
			}
		}
	}
	t.Note("checking the host")
	tests, listed := v.checks(ctx, p.GPUs)
	add(tests...)
	t.Note("writing to the disk")
	add(v.disk(ctx))
	if max(p.GPUs, listed) > 0 {
		t.Note("running dcgmi diag")
		add(v.diagnose(ctx, programs, p.Rung))
		if p.Rung == recovery.RungReboot || p.Rung == recovery.RungReplace {
			t.Note("running the burn-in")
			add(v.burnIn(ctx, programs))
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // a test that was canceled did not fail
	}
	r.OK = !slices.ContainsFunc(r.Tests, recovery.Test.Failed)
	return r, nil
}

func skipped(name, format string, args ...any) recovery.Test {
	return recovery.Test{Name: name, Detail: recovery.SkippedTest + fmt.Sprintf(format, args...)}
}

// checks tests the number of GPUs and makes one test of each checker. A check that cannot be made is
// skipped, except for those of GPUs: a GPU that does not answer is not repaired.
func (v Verify) checks(ctx context.Context, gpus int) (tests []recovery.Test, listed int) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	found, listed, err := v.Health(ctx, gpus)
	if err != nil {
		return []recovery.Test{{Name: "gpu_list", Detail: err.Error()}}, 0
	}
	if gpus > 0 {
		tests = append(tests, recovery.Test{Name: "gpu_list", OK: listed == gpus, Detail: fmt.Sprintf("%d of %d GPUs", listed, gpus)})
	}
	for _, f := range found {
		tests = append(tests, testOf(f, max(gpus, listed) > 0))
	}
	return tests, listed
}

// testOf makes a test of what a checker found on a node with or without GPUs. Its detail names the
// first result that decides.
func testOf(f health.Finding, gpus bool) recovery.Test {
	for _, r := range f.Results {
		if r.Status == health.Unhealthy && r.Repair.Acts() {
			return recovery.Test{Name: f.Checker, Detail: describe(r)}
		}
	}
	for _, r := range f.Results {
		switch {
		case r.Status != health.Unknown:
		case gpus && strings.HasPrefix(f.Checker, "gpu_"):
			return recovery.Test{Name: f.Checker, Detail: "unknown: " + describe(r)}
		default:
			return skipped(f.Checker, "%s", describe(r))
		}
	}
	t := recovery.Test{Name: f.Checker, OK: true, Detail: fmt.Sprintf("%d checked", len(f.Results))}
	if len(f.Results) == 1 {
		t.Detail = describe(f.Results[0])
	}
	return t
}

func describe(r health.Result) string {
	return strings.TrimSpace(strings.Join([]string{r.Component, r.Reason, r.Detail}, " "))
}

func (v Verify) disk(ctx context.Context) recovery.Test {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	detail, err := v.WriteDisk(ctx)
	if err != nil {
		return recovery.Test{Name: "disk_write", Detail: err.Error()}
	}
	return recovery.Test{Name: "disk_write", OK: true, Detail: detail}
}

// diagnose runs NVIDIA's diagnosis.
func (v Verify) diagnose(ctx context.Context, programs command.Runner, rung recovery.Rung) recovery.Test {
	level, limit := diagnosis(rung)
	name := "dcgm_diag_" + level
	path, err := exec.LookPath(v.DCGM)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return skipped(name, "dcgmi is not installed")
	}
	if err != nil {
		return recovery.Test{Name: name, Detail: err.Error()}
	}
	begin := time.Now()
	out, stderr, err := v.Outside.run(ctx, programs, limit, path, "diag", "-r", level, "-j")
	passed, failures := readDiagnosis(out)
	took := time.Since(begin).Round(time.Second)
	switch {
	case len(failures) > 0:
		return recovery.Test{Name: name, Detail: "failed: " + strings.Join(failures, ", ")}
	case err != nil:
		return recovery.Test{Name: name, Detail: fmt.Sprintf("dcgmi: %v: %s", err, tail(out+stderr))}
	case passed == 0:
		return recovery.Test{Name: name, Detail: "unexpected output of dcgmi: " + tail(out)}
	}
	return recovery.Test{Name: name, OK: true, Detail: fmt.Sprintf("%d results passed in %s", passed, took)}
}

// readDiagnosis reads the JSON of dcgmi diag, of DCGM 3 and 4. It returns how many results passed and
// the tests with one that failed.
func readDiagnosis(out string) (passed int, failures []string) {
	var doc map[string]json.RawMessage
	if json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &doc) != nil {
		return 0, nil
	}
	type diagnosis struct {
		Categories []struct {
			Tests []struct {
				Name    string `json:"name"`
				Results []struct {
					Status string `json:"status"`
				} `json:"results"`
			} `json:"tests"`
		} `json:"test_categories"`
	}
	for _, part := range doc {
		var d diagnosis
		if json.Unmarshal(part, &d) != nil {
			continue
		}
		for _, category := range d.Categories {
			for _, test := range category.Tests {
				for _, result := range test.Results {
					switch strings.ToLower(result.Status) {
					case "pass":
						passed++
					case "fail":
						if !slices.Contains(failures, test.Name) {
							failures = append(failures, test.Name)
						}
					}
				}
			}
		}
	}
	return passed, failures
}

// burnIn runs the configured command. Its last line with a bandwidth, or its last line, is the figure.
func (v Verify) burnIn(ctx context.Context, programs command.Runner) recovery.Test {
	if len(v.BurnIn) == 0 {
		return skipped("burn_in", "GPUAAS_BURN_IN is not set")
	}
	out, stderr, err := v.Outside.run(ctx, programs, burnInTimeout, v.BurnIn[0], v.BurnIn[1:]...)
	if err != nil {
		return recovery.Test{Name: "burn_in", Detail: fmt.Sprintf("%v: %s", err, tail(out+stderr))}
	}
	figure := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		bandwidth := strings.Contains(strings.ToLower(line), "bandwidth")
		if line != "" && (bandwidth || !strings.Contains(strings.ToLower(figure), "bandwidth")) {
			figure = line
		}
	}
	return recovery.Test{Name: "burn_in", OK: true, Detail: figure}
}
