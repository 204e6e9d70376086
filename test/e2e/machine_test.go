package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// machine simulates a host for the agent and its scripts: a folder as the root of its
// file system, and a service manager that only records its calls. The test starts and
// stops the agent.
type machine struct {
	t     *testing.T
	root  string
	agent *exec.Cmd
}

// hostsDir contains the folders of the machines.
func hostsDir() string { return filepath.Join(shared.Dir, "hosts") }

// newMachine installs the bundle's files on a machine.
func newMachine(t *testing.T, nodeHost string, b trust.BootstrapBundle) *machine {
	t.Helper()
	m := &machine{t: t, root: filepath.Join(hostsDir(), nodeHost)}
	m.write("bin/systemctl", "#!/bin/sh\necho \"$*\" >>\"$DESTDIR/systemctl.log\"\n", 0o700)
	m.write(b.CABundlePath, b.CABundlePEM, 0o600)
	m.write(b.NodeCertCABundlePath, b.NodeCertCABundlePEM, 0o600)
	m.write(trust.DefaultEnvFile, b.EnvFile(), 0o600)
	t.Cleanup(m.stop)
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.root, name) }

func (m *machine) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(m.path(name)), 0o700))
	require.NoError(m.t, os.WriteFile(m.path(name), []byte(text), mode))
}

// env is the environment that makes the folder the machine's root.
func (m *machine) env() []string {
	return []string{
		"PATH=" + m.path("bin") + ":" + os.Getenv("PATH"), "DESTDIR=" + m.root,
		"GPUAAS_NODE_AGENT_ENV_FILE=" + m.path(trust.DefaultEnvFile), "GPUAAS_STATE_DIR=" + m.path(trust.DefaultStateDir),
		"GPUAAS_CERT_PATH=" + m.path(trust.DefaultCertPath), "GPUAAS_KEY_PATH=" + m.path(trust.DefaultKeyPath),
		"GPUAAS_CA_BUNDLE_PATH=" + m.path(trust.DefaultCABundlePath), "GPUAAS_NODE_CERT_CA_BUNDLE_PATH=" + m.path(trust.DefaultNodeCABundlePath),
	}
}

// start starts the agent like the service manager, with a log next to the stack's.
func (m *machine) start() {
	m.t.Helper()
	log, err := os.OpenFile(filepath.Join(shared.Dir, "log", "host-"+filepath.Base(m.root)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(m.t, err)
	defer func() { require.NoError(m.t, log.Close()) }()
	m.agent = exec.Command(filepath.Join(filepath.Dir(shared.Bin), "gpuaas-node-agent"), "run")
	m.agent.Env, m.agent.Stderr = m.env(), log
	require.NoError(m.t, m.agent.Start())
}

// stop stops the agent and waits for its exit. It may be called twice.
func (m *machine) stop() {
	if m.agent == nil {
		return
	}
	_ = m.agent.Process.Signal(syscall.SIGTERM) // it may have exited
	_ = m.agent.Wait()                          // the exit code does not matter
	m.agent = nil
}

// loseIdentity deletes the machine's identity: certificate, key, state and all tokens.
func (m *machine) loseIdentity() {
	m.t.Helper()
	require.NoError(m.t, os.Remove(m.path(trust.DefaultCertPath)))
	require.NoError(m.t, os.Remove(m.path(trust.DefaultKeyPath)))
	require.NoError(m.t, os.RemoveAll(m.path(trust.DefaultStateDir)))
	env, err := os.ReadFile(m.path(trust.DefaultEnvFile))
	require.NoError(m.t, err)
	m.write(trust.DefaultEnvFile, tokenLine.ReplaceAllString(string(env), ""), 0o600)
}

// shell runs a command on the machine and returns all calls of the service manager so
// far.
func (m *machine) shell(command string) (calls string) {
	m.t.Helper()
	c := exec.Command("sh")
	c.Env, c.Stdin = m.env(), strings.NewReader(command)
	out, err := c.CombinedOutput()
	require.NoError(m.t, err, "%s", out)
	require.NotContains(m.t, string(out), trust.TokenPrefix)
	log, err := os.ReadFile(m.path("systemctl.log"))
	require.NoError(m.t, err)
	return string(log)
}

// readPrivate reads a JSON file that only its owner can read.
func readPrivate[T any](t *testing.T, file string) (v T) {
	t.Helper()
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "%s is not private", file)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &v))
	shared.secrets.read(raw)
	return v
}
