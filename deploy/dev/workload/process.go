package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// maxLogBytes is the size at which a workload's log starts over at its next
// start.
const maxLogBytes = 10 << 20

// gate waits for one line on descriptor 3 and then becomes the command. The
// agent writes the line after it stored the pid; when it dies before, the pipe
// closes and the shell ends without having run anything, so that no
// process runs without a record.
const gate = `read -r go <&3 || exit 125; exec 3<&-; exec "$@"`

// start runs the spec's command in a session of its own and stores its pid
// before the command itself begins.
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
	defer w.Close() //nolint:errcheck // closing is the signal, written or not
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
	s.BootID, s.StartTime = p.host.bootID(), p.host.startTime(s.PID)
	if err = p.save(s); err == nil {
		_, err = w.WriteString("go\n")
	}
	go func() {
		cmd.Wait() //nolint:errcheck // how it ended is in its log; this only reaps
		p.checkNow()
	}()
	if err != nil {
		return fmt.Errorf("storing the pid: %w", err)
	}
	return nil
}

// errBadPID refuses a pid whose signal would reach processes that are not ours:
// kill(2) reads 0 and -1 as "many".
var errBadPID = errors.New("not the pid of a workload")

// signalGroup signals a workload's process group; the only place that does.
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
	return os.OpenFile(path, flag, privateFile)
}

// childEnv is what programs the agent starts get to see: never the agent's own
// environment, which may hold its token.
func childEnv(more ...string) []string {
	env := []string{"LC_ALL=C"}
	for _, k := range []string{"PATH", "HOME", "USER", "TMPDIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return append(env, more...)
}
