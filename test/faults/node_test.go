package faults_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// machine is a node: a disk, a clock that may be wrong, and the agent process.
type machine struct {
	id    string
	conf  agent.Config
	disk  *disk
	site  *site
	log   *slog.Logger
	skew  time.Duration
	r     *rand.Rand // spreads the agent's waits
	agent *agent.Agent
	// removed is set when the agent reports that the node was removed.
	removed bool
	// accepted is set when the server accepts a poll.
	accepted bool
}

// layout returns the agent configuration with the paths of a node.
func layout(nodeID, root, caPath string) agent.Config {
	return agent.Config{NodeID: nodeID, APIURL: "https://" + serverName, SigningPubkeys: startTrust().String(), Env: testEnv,
		CABundlePath: caPath, NodeCABundlePath: filepath.Join(root, "node-ca.pem"),
		CertPath: filepath.Join(root, "etc", "cert.pem"), KeyPath: filepath.Join(root, "etc", "key.pem"),
		StateDir: filepath.Join(root, "state"), WorkloadDriver: inventory.DriverNone}
}

func newMachine(conf agent.Config, s *site, log *slog.Logger, d *disk) *machine {
	return &machine{id: conf.NodeID, conf: conf, disk: d, site: s, log: log}
}

// Now implements agent.Clock: the correct time plus the node's error.
func (m *machine) Now() time.Time { return m.site.clock.Now().Add(m.skew) }

// Sleep implements agent.Clock. Steps do not sleep.
func (m *machine) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// transport sends each request on a new connection of the run's network. The detection
// of a dead connection would be a race.
func (m *machine) transport(c *tls.Config) http.RoundTripper {
	c = c.Clone()
	c.Time = m.Now
	c.CurvePreferences = []tls.CurveID{tls.X25519} // the fastest; there is no secret to protect
	return &http.Transport{TLSClientConfig: c, DialContext: m.site.wire.Dial, DisableKeepAlives: true}
}

// boot starts the agent process with the current disk.
func (m *machine) boot() (err error) {
	m.halt()
	m.agent, err = m.make(m, m.transport)
	return err
}

// make creates the agent process with a clock and a network.
func (m *machine) make(c agent.Clock, transport func(*tls.Config) http.RoundTripper) (*agent.Agent, error) {
	if err := m.conf.Validate(); err != nil {
		return nil, err
	}
	// The lock and disposable files are real files.
	if err := os.MkdirAll(m.conf.StateDir, 0o700); err != nil {
		return nil, err
	}
	d := agent.Deps{Log: m.log, FS: m.disk, Clock: c, Transport: transport}
	if m.site != nil {
		d.PollTimeout = time.Millisecond
		d.Jitter = func(most time.Duration) time.Duration { return time.Duration(m.r.Int64N(int64(most) + 1)) }
	}
	return agent.New(m.conf, d)
}

func (m *machine) halt() {
	if m.agent != nil {
		m.agent.Close()
		m.agent = nil
	}
}

// step runs one step of the agent and starts its process if necessary. It returns a
// description of the outcome and how long the agent would wait.
func (m *machine) step(ctx context.Context) (outcome string, wait time.Duration) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(crashed); !ok {
				panic(v)
			}
			m.halt()
			m.disk.crash()
			outcome = "crashed"
		}
	}()
	m.accepted = false
	if m.removed {
		return "stopped", time.Hour
	}
	if m.agent == nil {
		if err := m.boot(); err != nil {
			m.halt()
			return "does not start: " + errorText(err), time.Minute
		}
	}
	out, err := m.agent.RunOnce(ctx)
	m.removed = out.Removed
	m.accepted = out.Ready && err == nil
	outcome = string(out.Action)
	if out.Err != nil {
		outcome += ": " + errorText(out.Err)
	}
	switch {
	case m.accepted:
		outcome += ", poll accepted"
	case err != nil:
		outcome += ", poll: " + errorText(err)
	}
	if out.Removed {
		outcome += ", removed"
	}
	return strings.ReplaceAll(outcome, m.disk.root, ""), out.Wait
}

// errorText returns an error without run-specific values.
func errorText(err error) string {
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return fmt.Sprintf("%s %s", e.Kind, e.Reason)
	}
	return err.Error()
}

// seeded returns a run's random generator for one purpose.
func seeded(seed, purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, purpose))
}

// setToken applies the restart command of a reissue: it writes the new token to the env
// file and renames the old key pair.
func (m *machine) setToken(token string) {
	m.conf.EnrollmentToken = schema.NewSecret(token)
	m.removed = false
	for _, path := range []string{m.conf.CertPath, m.conf.KeyPath} {
		m.disk.renameOld(path)
	}
}
