package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/proc"
)

// maxLogBytes is the size from which a workload's log is truncated at its next
// start.
const maxLogBytes = 10 << 20

// gate reads one line from descriptor 3 and then executes the command. The agent
// writes the line after it has stored the pid. If the agent dies earlier, the pipe
// closes and the shell exits without running the command, so no process runs without
// a record.
const gate = `read -r go <&3 || exit 125; exec 3<&-; exec "$@"`

// start runs the spec's command in a new session and stores its pid before the
// command begins.
func (p *Driver) start(s *process, spec processSpec) error {
	out, err := openLog(p.file(s.Name, ".log"))
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // the child has its own descriptor
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close() //nolint:errcheck // closing releases the gate, written or not
	// The process outlives every context of the agent.
	cmd := exec.CommandContext(context.Background(), "/bin/sh", append([]string{"-c", gate, "gpuaas-workload"}, spec.Command...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, p.dir
	cmd.ExtraFiles = []*os.File{r}
	cmd.Env = childEnv("GPUAAS_WORKLOAD="+s.Name, s.mark())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	r.Close() //nolint:errcheck // the child has its own descriptor
	if err != nil {
		return err
	}
	s.Phase, s.PID, s.StartedAt = phaseRunning, cmd.Process.Pid, time.Now().UTC()
	s.BootID, s.StartTime = proc.BootID(), proc.StartTime(s.PID)
	if err = p.save(s); err == nil {
		_, err = w.WriteString("go\n")
	}
	go func() {
		cmd.Wait() //nolint:errcheck // only reaps the process; its log has the reason
		p.checkNow()
	}()
	if err != nil {
		return fmt.Errorf("storing the pid: %w", err)
	}
	return nil
}

// errBadPID rejects a pid that kill(2) interprets as a group of other processes,
// such as 0 and -1.
var errBadPID = errors.New("not the pid of a workload")

// signalGroup signals a workload's process group.
func signalGroup(pid int, sig syscall.Signal) error {
	if pid <= 1 {
		return errBadPID
	}
	return syscall.Kill(-pid, sig)
}

// signalOne signals one process of a workload.
func signalOne(pid int, sig syscall.Signal) error {
	if pid <= 1 {
		return errBadPID
	}
	return syscall.Kill(pid, sig)
}

func openLog(path string) (*os.File, error) {
	flag := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if fi, err := os.Stat(path); err == nil && fi.Size() > maxLogBytes {
		flag |= os.O_TRUNC
	}
	return os.OpenFile(path, flag, 0o600)
}

// childEnv returns the environment of a workload. It does not include the agent's
// own environment, which may contain its token.
func childEnv(more ...string) []string {
	env := []string{"LC_ALL=C"}
	for _, k := range []string{"PATH", "HOME", "USER", "TMPDIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return append(env, more...)
}
