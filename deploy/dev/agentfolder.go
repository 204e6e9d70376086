package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/proc"
	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// agentFolder is the folder of one agent.
type agentFolder struct {
	name string
	dir  string
	log  string
}

// agents manages the agent processes of the stack.
type agents struct{ *stack }

func (s agents) folder(name string) agentFolder {
	return agentFolder{name: name, dir: s.layout.agentDir(name), log: s.layout.logPath(agentPrefix + name)}
}

func (a agentFolder) part() string      { return agentPrefix + a.name }
func (a agentFolder) envFile() string   { return filepath.Join(a.dir, "node-agent.env") }
func (a agentFolder) cert() string      { return filepath.Join(a.dir, "cert.pem") }
func (a agentFolder) stateDir() string  { return filepath.Join(a.dir, "state") }
func (a agentFolder) workloads() string { return filepath.Join(a.dir, "workloads") }

// enrolled reports whether the agent has an identity.
func (a agentFolder) enrolled() bool {
	_, certErr := os.Stat(a.cert())
	_, envErr := os.Stat(a.envFile())
	return certErr == nil && envErr == nil
}

// removed reports whether the agent's last log line says that its node was
// removed. Such an agent has exited permanently and is no longer a part.
func (a agentFolder) removed() bool {
	raw, err := os.ReadFile(a.log)
	if err != nil {
		return false
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Contains(lines[len(lines)-1], `"msg":"node removed`)
}

// write stores a bundle in the folder, with paths inside the folder, and selects
// the workload driver that runs local processes.
func (a agentFolder) write(b trust.BootstrapBundle) error {
	if a.nodeID() != b.NodeID {
		if err := os.RemoveAll(a.dir); err != nil {
			return fmt.Errorf("removing the folder of another node: %w", err)
		}
	}
	if err := os.MkdirAll(a.workloads(), privateDir); err != nil {
		return err
	}
	b.CABundlePath, b.NodeCertCABundlePath = filepath.Join(a.dir, "ca-bundle.crt"), filepath.Join(a.dir, "node-cert-ca-bundle.crt")
	b.CertPath, b.KeyPath = a.cert(), filepath.Join(a.dir, "key.pem")
	more := fmt.Sprintf("GPUAAS_STATE_DIR=%q\nGPUAAS_WORKLOAD_DRIVER=\"process\"\n", a.stateDir())
	return errors.Join(
		statefile.Write(b.CABundlePath, []byte(b.CABundlePEM)),
		statefile.Write(b.NodeCertCABundlePath, []byte(b.NodeCertCABundlePEM)),
		statefile.Write(a.envFile(), []byte(b.EnvFile()+more)))
}

// nodeID returns the node ID in the env file, "" if there is none.
func (a agentFolder) nodeID() string { return a.setting("GPUAAS_NODE_ID") }

// setting returns a value in the env file, "" if there is none.
func (a agentFolder) setting(name string) string {
	raw, err := os.ReadFile(a.envFile())
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// updateAPIURLs writes the current URL of the node API to every env file.
func (s agents) updateAPIURLs() error {
	names, err := s.layout.agentNames()
	for _, name := range names {
		a := s.folder(name)
		raw, readErr := os.ReadFile(a.envFile())
		if readErr != nil {
			continue // never enrolled
		}
		lines := strings.SplitAfter(string(raw), "\n")
		for i, line := range lines {
			if strings.HasPrefix(line, "GPUAAS_API_URL=") {
				lines[i] = fmt.Sprintf("GPUAAS_API_URL=%q\n", s.record.nodeURL())
			}
		}
		err = errors.Join(err, statefile.Write(a.envFile(), []byte(strings.Join(lines, ""))))
	}
	return err
}

// parts returns the agents that run, or are enrolled and not removed.
func (s agents) parts() ([]part, error) {
	names, err := s.layout.agentNames()
	var parts []part
	for _, name := range names {
		a := s.folder(name)
		_, runs := s.layout.processes().running(a.part())
		if runs || (a.enrolled() && !a.removed()) {
			parts = append(parts, s.part(a))
		}
	}
	return parts, err
}

func (s agents) part(a agentFolder) part {
	return part{
		name: a.part(), address: s.record.nodeURL(),
		healthy: s.probe(a),
		ready: func(context.Context) error {
			if !a.enrolled() {
				return fmt.Errorf("no certificate yet%s", tail(a.log))
			}
			return nil
		},
		prepare: func(context.Context) (command, error) {
			path, err := s.programs.path(agentBinary)
			env := s.record.processEnv(variables{{"GPUAAS_NODE_AGENT_ENV_FILE", a.envFile()}})
			return command{path: path, args: []string{"run"}, env: env, dir: a.dir}, err
		},
	}
}

// probe succeeds if the process runs and is enrolled, and its last poll, if any,
// succeeded.
func (s agents) probe(a agentFolder) probe {
	return func(context.Context) error {
		id, ok := s.layout.processes().running(a.part())
		if !ok {
			return errors.New("not running")
		}
		if !a.enrolled() {
			return errors.New("no certificate yet")
		}
		var poll struct {
			OK    bool
			Error string
			PID   int
		}
		found, err := statefile.ReadJSON(filepath.Join(a.stateDir(), "poll.json"), &poll)
		if err == nil && found && poll.PID == id.PID && !poll.OK {
			err = fmt.Errorf("last poll: %s", poll.Error)
		}
		return err
	}
}

// workload is the state file of a process that the agent's driver started.
type workload struct {
	Phase     string `json:"phase"`
	PID       int    `json:"pid"`
	StartTime string `json:"start_time"`
	BootID    string `json:"boot_id"`
}

// stopWorkloads stops the processes that the agent's driver started. They survive
// the agent on purpose, but not the stack.
func (a agentFolder) stopWorkloads(ctx context.Context) (stopped int, err error) {
	files, err := filepath.Glob(filepath.Join(a.workloads(), "*.state"))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		var w workload
		if _, readErr := statefile.ReadJSON(f, &w); readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		id := identity{PID: w.PID, StartTime: w.StartTime, BootID: proc.BootID()}
		if w.Phase != "running" || (id.BootID != "" && w.BootID != id.BootID) || !id.alive() {
			continue
		}
		stopped++
		err = errors.Join(err, id.stopGroup(ctx))
	}
	return stopped, err
}

// stopGroup stops the process and the process group that it leads.
func (i identity) stopGroup(ctx context.Context) error {
	for _, step := range defaultStop() {
		if !i.alive() {
			break
		}
		signal, ok := step.signal.(syscall.Signal)
		if !ok {
			continue
		}
		if err := syscall.Kill(-i.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stopping process group %d: %w", i.PID, err)
		}
		if until(ctx, step.wait, func() bool { return !i.alive() }) {
			return nil
		}
	}
	return nil
}

// agentNames lists every agent folder, enrolled or not.
func (l layout) agentNames() ([]string, error) {
	dirs, err := os.ReadDir(l.agentsDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, 0, len(dirs))
	for _, d := range dirs {
		names = append(names, d.Name())
	}
	return slices.Clip(names), err
}
