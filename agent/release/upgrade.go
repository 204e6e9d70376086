package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Config is what an Upgrade depends on.
type Config struct {
	State   disk.StateDir
	Running Running
	// Version is that of this process.
	Version string
	// Keys returns the release keys.
	Keys func() []trust.VerifierKey
	// Fetch downloads size bytes whose SHA-256 should be the given one.
	Fetch func(ctx context.Context, sha256 string, size int64) ([]byte, error)
	// VersionOf runs a binary and returns the version that it reports.
	VersionOf func(ctx context.Context, path string) (string, error)
	// Restart ends the process; Restart of the package is to follow.
	Restart func()
	// Retry is the backoff of failed downloads.
	Retry wait.Range
	// Jitter spreads the downloads that the API asked to repeat later. nil is a random one.
	Jitter wait.Jitter
	// Trial is how long this process may take to be kept. Defaults to task.TrialTime.
	Trial time.Duration
	Log   *slog.Logger
}

// Upgrade runs agent.upgrade, and keeps or abandons the release that this process is.
// It is safe for concurrent use.
type Upgrade struct {
	conf Config
	s    store
	over chan struct{} // closed when this process is not on trial, or no longer

	mu   sync.Mutex
	st   state
	last string // why the latest poll failed
}

// Open reads the state that the launcher left. A damaged state counts as none: the release
// that runs stays until the next start.
func Open(c Config) *Upgrade {
	u := &Upgrade{conf: c, s: newStore(c.State), over: make(chan struct{})}
	var err error
	if u.st, _, err = u.s.load(); err != nil {
		c.Log.Error("cannot read which release runs", "err", err.Error())
		u.st = state{}
	}
	if !u.onTrial() {
		close(u.over)
	}
	return u
}

// onTrial reports whether this process is the release on trial.
func (u *Upgrade) onTrial() bool {
	return u.st.Trial != nil && u.conf.Running.Release == u.st.Trial.SHA256
}

// OnTrial reports whether this process must still make a successful poll to be kept.
func (u *Upgrade) OnTrial() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.onTrial()
}

// Polled records the outcome of a poll. The first successful one ends the trial; if the disk
// fails then, the next one does.
func (u *Upgrade) Polled(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.onTrial() {
		return
	}
	if err != nil {
		u.last = err.Error()
		return
	}
	kept := u.st
	kept.keep()
	if err := u.s.save(kept); err != nil {
		u.last = err.Error()
		u.conf.Log.Error("the release works, and cannot be recorded as the current one", "err", err.Error())
		return
	}
	u.conf.Log.Info("release kept after its first poll", "version", kept.Current.Version)
	u.st = kept
	u.s.clean(kept)
	close(u.over)
}

// Watch abandons the release if its trial takes too long. It returns when the trial is over
// or ctx ends.
func (u *Upgrade) Watch(ctx context.Context) {
	limit := u.conf.Trial
	if limit == 0 {
		limit = task.TrialTime
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-u.over:
	case <-timer.C:
		u.abandon(limit)
	}
}

func (u *Upgrade) abandon(limit time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.onTrial() {
		return
	}
	reason := fmt.Sprintf("no successful poll within %s", limit)
	if u.last != "" {
		reason += ": " + u.last
	}
	u.conf.Log.Error("upgrade rolled back", "version", u.st.Trial.Version, "reason", reason)
	u.st.fail(text.Truncate(reason))
	if err := u.s.save(u.st); err != nil {
		u.conf.Log.Error("cannot record that the upgrade was rolled back", "err", err.Error()) // the launcher counts the starts
	}
	u.conf.Restart()
}

// Check refuses params that are not those of agent.upgrade.
func Check(params json.RawMessage) error {
	var p task.UpgradeParams
	return schema.DecodeStrict(params, wire.MaxBodyBytes, &p)
}

// Run runs agent.upgrade. Up to the restart it is the old agent; the task's result then comes
// from the agent that runs after the trial.
func (u *Upgrade) Run(ctx context.Context, t execution.Task) (any, error) {
	if over, err := u.earlier(ctx, t.TaskID); over {
		return task.UpgradeResult{Version: u.conf.Version}, err
	}
	var p task.UpgradeParams
	if err := schema.DecodeStrict(t.Params, wire.MaxBodyBytes, &p); err != nil {
		return nil, rejected("cannot parse the params: %v", err)
	}
	r, err := trust.OpenRelease([]byte(p.Release), u.conf.Keys())
	switch {
	case len(u.conf.Keys()) == 0:
		return nil, rejected("this node has no release key; set GPUAAS_RELEASE_PUBKEYS in its env file and restart the agent")
	case err != nil:
		return nil, rejected("%v", err)
	case !p.Downgrade && version.Older(r.Version, u.conf.Version):
		return nil, rejected("%s is older than %s, which runs, and the task does not ask for a downgrade", r.Version, u.conf.Version)
	}
	installed, err := sumOf(u.conf.Running.Installed)
	if err != nil {
		return nil, err
	}
	if running := u.conf.Running.Release; running == r.SHA256 || running == "" && installed == r.SHA256 {
		return task.UpgradeResult{Version: u.conf.Version}, nil
	}
	if err := u.install(ctx, r); err != nil {
		return nil, err
	}
	if err := u.try(installed, slot{r.Version, r.SHA256, t.TaskID}); err != nil {
		return nil, err
	}
	u.conf.Log.Info("restarting with the release on trial", "version", r.Version, "task_id", t.TaskID)
	u.conf.Restart()
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// rejected is the error of a release that was not tried.
func rejected(format string, args ...any) error {
	return refusal.New(lifecycle.ReasonReleaseRejected, lifecycle.ReasonReleaseRejected+": "+format, args...)
}

// rolledBack is the error of a release that was tried.
func rolledBack(f failure) error {
	return schema.NewError(schema.KindTaskFailed, "%s: %s: %s", lifecycle.ReasonUpgradeRolledBack, f.Version, f.Reason).
		WithReason(lifecycle.ReasonUpgradeRolledBack)
}

// earlier returns the end of the task if a process before this one began it and its trial is
// over, or when this process ends the trial.
func (u *Upgrade) earlier(ctx context.Context, taskID string) (over bool, err error) {
	select {
	case <-u.over:
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	of := func(s *slot) bool { return s != nil && s.TaskID == taskID }
	switch {
	case of(u.st.Current):
		return true, nil
	case of(u.st.Trial): // the launcher could not record or start it
		u.st.fail("it could not be started; the log of the agent says why")
		err := u.s.save(u.st)
		return true, errors.Join(rolledBack(*u.st.Failed), err)
	case u.st.Failed != nil && of(&u.st.Failed.slot):
		return true, rolledBack(*u.st.Failed)
	}
	return false, nil
}

// Bounds of the download of a release. The first leaves a fifth of the task's time for the rest.
const (
	downloadTime = task.UpgradeTime * 4 / 5
	maxDownloads = 5 // that failed, without those that the API asked to repeat later
)

// download fetches the binary of a release. Nothing of a download that failed is used. It waits
// as long as the API asks for, unless its time is over before.
func (u *Upgrade) download(ctx context.Context, r trust.Release) (data []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, downloadTime)
	defer cancel()
	end, _ := ctx.Deadline()
	retry := wait.Backoff{Range: u.conf.Retry}
	for failures := 0; failures < maxDownloads; {
		if data, err = u.conf.Fetch(ctx, r.SHA256, r.Size); err == nil || !schema.KindOf(err).Info().Retry {
			break
		}
		var pause time.Duration
		if later, ok := errors.AsType[apierror.RetryError](err); ok {
			pause = later.After + u.conf.Jitter.UpTo(later.After/2)
		} else {
			failures++
			pause = retry.Next()
		}
		u.conf.Log.Warn("release not downloaded", "version", r.Version, "err", err.Error(), "retry_in", pause.String())
		if pause > time.Until(end) || wait.Sleep(ctx, pause) != nil {
			break
		}
	}
	switch {
	case err != nil:
		return nil, schema.Wrap(schema.KindTaskFailed, err, "downloading release %s", r.Version)
	case int64(len(data)) != r.Size || schema.SHA256Hex(data) != r.SHA256:
		return nil, rejected("the download has %d bytes with SHA-256 %s, not those of release %s", len(data), schema.SHA256Hex(data), r.Version)
	}
	return data, nil
}

// install downloads and verifies the binary of a release and stores it beside the others.
func (u *Upgrade) install(ctx context.Context, r trust.Release) error {
	u.s.clean(u.state())
	data, err := u.download(ctx, r)
	if err != nil {
		return err
	}
	path := u.s.binary(r.SHA256)
	err = u.s.MkdirAll(u.s.File(folder))
	if err == nil {
		err = u.s.Write(path, data)
	}
	if err == nil {
		err = os.Chmod(path, executable)
	}
	if err != nil {
		return schema.Wrap(schema.KindTaskFailed, err, "storing release %s", r.Version)
	}
	reported, err := u.conf.VersionOf(ctx, path)
	switch {
	case err != nil:
		return rejected("this node cannot run it: %v", err)
	case reported != r.Version:
		return rejected("it is signed as version %s, and reports %q", r.Version, text.Truncate(reported))
	}
	return nil
}

func (u *Upgrade) state() state {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.st
}

// try records the release on trial. The release of a package that an operator installed since
// the last start begins with no other.
func (u *Upgrade) try(installed string, of slot) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := state{Installed: installed, Current: u.st.Current, Trial: &of}
	if u.st.Installed != installed {
		next.Current = nil
	}
	if err := u.s.save(next); err != nil {
		return schema.Wrap(schema.KindTaskFailed, err, "recording the release on trial")
	}
	u.st = next
	return nil
}

// ReportedVersion returns the version in the output of the command version.
func ReportedVersion(output []byte) (string, error) {
	words := strings.Fields(string(bytes.TrimSpace(output)))
	if len(words) < 2 || words[0] != "gpuaas-node-agent" {
		return "", fmt.Errorf("its command version prints %q", text.Truncate(string(output)))
	}
	return words[1], nil
}
