package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/doctor"
	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/nodeapi"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// hostsFile maps names to addresses before DNS does.
const hostsFile = "/etc/hosts"

// Diagnose checks what the agent needs, in the order in which it needs it. fault is that of a
// configuration that cannot be loaded; with a faulty configuration, nothing else is checked. It
// changes nothing on the node, and at the API nothing but the use of a certificate that the agent
// has not used yet, if the node has no other.
func Diagnose(ctx context.Context, c Config, fault error) diagnosis.Report {
	var r diagnosis.Report
	r.Add(checkConfiguration(&c, fault))
	if fault != nil || c.Validate() != nil {
		return r
	}
	reached := diagnoseRoute(ctx, &r, c.route())
	certificate, check := checkCertificate(c)
	r.Add(check)
	accepted := diagnosis.Check{Name: "identity accepted"}.Skipped()
	if reached && certificate != nil {
		accepted = c.route().Authenticated(ctx, certificate)
	}
	r.Add(accepted)
	r.Add(checkDisk(c))
	diagnoseState(ctx, &r, c)
	return r
}

// diagnoseState adds the checks of what the agent has stored.
func diagnoseState(ctx context.Context, r *diagnosis.Report, c Config) {
	s, err := ReadStatus(ctx, c)
	if err == nil {
		r.Add(checkPoll(s))
		r.Add(checkVerifierSet(s))
		r.Add(checkWorkloads(c, s))
		return
	}
	state := diagnosis.Check{Name: "state", Asked: "the files of the agent in " + c.StateDir}
	r.Add(state.Failed(text.Truncate(err.Error()), diagnosis.Node, "run the command as root; if a file is damaged, see journalctl -u gpuaas-node-agent -n 50"))
	for _, name := range []string{"last poll", "verifier set", "workload driver"} {
		r.Add(diagnosis.Check{Name: name}.Skipped())
	}
}

// route is the way to the node API.
func (c Config) route() doctor.Route {
	return doctor.Route{URL: c.APIURL, NodeID: c.NodeID, CABundlePath: c.CABundlePath, HostsFile: hostsFile,
		EnvFile: cmp.Or(c.EnvFile, trust.DefaultEnvFile)}
}

// diagnoseRoute adds the checks of the way to the node API and reports whether the API
// responds. After the first fault, the others are skipped.
func diagnoseRoute(ctx context.Context, r *diagnosis.Report, way doctor.Route) bool {
	var date time.Time
	reached := true
	for _, step := range []struct {
		name  string
		check func(context.Context) diagnosis.Check
	}{
		{"name", way.Name}, {"connection", way.Connection}, {"server certificate", way.Certificate},
		{"route", func(ctx context.Context) (c diagnosis.Check) { c, date = way.Unauthenticated(ctx); return c }},
	} {
		c := diagnosis.Check{Name: step.name}.Skipped()
		if reached {
			c = step.check(ctx)
		}
		reached = r.Add(c) && reached
	}
	r.Add(doctor.Clock(time.Now(), date, nodeapi.ClockTolerance))
	return reached
}

func checkConfiguration(c *Config, fault error) diagnosis.Check {
	check := diagnosis.Check{Name: "configuration", Asked: "the environment and " + cmp.Or(c.EnvFile, trust.DefaultEnvFile)}
	if len(c.Replaced) > 0 {
		names := strings.Join(c.Replaced, " ")
		return check.Failed("the environment of this shell replaces "+names+" of "+c.EnvFile, diagnosis.Node,
			"the agent's service does not have these values: unset "+names+", and repeat the command")
	}
	if fault == nil {
		fault = c.Validate()
	}
	if errors.Is(fault, fs.ErrPermission) {
		return check.Failed(fault.Error(), diagnosis.Node, "run the command as root")
	}
	if fault != nil {
		return check.Failed(fault.Error(), diagnosis.Operator, "create a new bundle: "+newScript(c.NodeID))
	}
	return check.OK("node " + c.NodeID + ", node API " + c.APIURL)
}

// newScript is the command that gives a node a new bundle.
func newScript(nodeID string) string {
	return fmt.Sprintf("gpuaas node bootstrap-script %s, and run the script here with --force", cmp.Or(nodeID, "NODE"))
}

// checkCertificate returns the certificate that the agent presents, nil if there is none.
func checkCertificate(c Config) (*tls.Certificate, diagnosis.Check) {
	check := diagnosis.Check{Name: "certificate", Asked: "the certificate in " + c.StateDir + ", and its issuer in " + c.NodeCABundlePath}
	state, clock := disk.At(c.StateDir), nodeapi.NewClock(time.Now, slog.New(slog.DiscardHandler))
	s, err := identity.ReadStatus(c.identity(), state, clock)
	if err != nil {
		return nil, check.Failed(err.Error(), diagnosis.Node, "run the command as root")
	}
	v, err := identity.Confirmed(c.identity(), state, clock)
	switch {
	case s.Removed:
		return nil, check.Failed("the node is removed", diagnosis.Operator, "to use the machine again, register it")
	case err != nil || v == nil:
		owner, next := withoutIdentity(c, s)
		return nil, check.Failed(text.Truncate(s.IdentityFault), owner, next)
	}
	answer := fmt.Sprintf("subject %q, issuer %q, valid from %s to %s, SHA-256 %s", v.Facts.URI, v.Facts.Issuer,
		text.FormatTime(v.Facts.NotBefore), text.FormatTime(v.Facts.NotAfter), v.Facts.Fingerprint)
	if s.IssuerFault != "" {
		return &v.Certificate, check.Failed(answer+"; "+s.IssuerFault, diagnosis.Node,
			"the agent corrects the file if the node API accepts the certificate; otherwise "+newScript(c.NodeID))
	}
	return &v.Certificate, check.OK(answer)
}

// withoutIdentity returns who gives the node an identity again.
func withoutIdentity(c Config, s identity.Status) (diagnosis.Owner, string) {
	switch {
	case s.RecoveryPossible:
		return diagnosis.Node, "the agent recovers automatically; to retry at once: systemctl restart gpuaas-node-agent"
	case !c.EnrollmentToken.Empty() && s.Identity == nil:
		return diagnosis.Node, "start the agent, which enrolls with its token: systemctl restart gpuaas-node-agent; its log has the reason if that fails"
	}
	return diagnosis.Operator, newScript(c.NodeID)
}

// leastFree is the size of the agent's own reserve on the disk.
const leastFree = 1 << 20

func checkDisk(c Config) diagnosis.Check {
	check := diagnosis.Check{Name: "state directory", Asked: "whether " + c.StateDir + " can be written, and its free space"}
	if _, err := os.Stat(c.StateDir); err != nil {
		return check.Failed(err.Error(), diagnosis.Node, "start the agent, which creates it: systemctl restart gpuaas-node-agent")
	}
	const writable = 2 // W_OK of access(2)
	if err := syscall.Access(c.StateDir, writable); err != nil {
		return check.Failed(err.Error(), diagnosis.Node, "run the command as root; if the file system is read-only, see dmesg")
	}
	free, err := host.Free(c.StateDir)
	if err != nil {
		return check.Failed(err.Error(), diagnosis.Node, "see dmesg for errors of the disk")
	}
	answer := fmt.Sprintf("writable, %d MiB free", free>>20)
	if free < leastFree {
		return check.Failed(answer, diagnosis.Node, "free space in the file system of "+c.StateDir)
	}
	return check.OK(answer)
}

// longestPoll is the time after which a running agent has recorded a poll.
const longestPoll = 2 * wire.MaxPollTimeout

// checkPoll compares the last poll with the longest time between two.
func checkPoll(s Status) diagnosis.Check {
	check := diagnosis.Check{Name: "last poll", Asked: "the running agent's last poll"}
	const start = "systemctl restart gpuaas-node-agent; then journalctl -u gpuaas-node-agent -n 50"
	last := s.LastPoll
	if last == nil && len(s.Versions) > 0 && time.Since(s.Versions[0].StoredAt) < longestPoll {
		return check.OK("none yet; the node has just enrolled")
	}
	if last == nil {
		return check.Failed("never", diagnosis.Node, start)
	}
	answer := fmt.Sprintf("%s, %s", text.FormatTime(last.At), cmp.Or(text.Truncate(last.Error), "ok"))
	switch {
	case !last.OK:
		return check.Failed(answer, diagnosis.Node, "correct the first fault above; the agent retries automatically")
	case time.Since(last.At) > longestPoll:
		return check.Failed(answer, diagnosis.Node, start)
	}
	return check.OK(answer)
}

func checkVerifierSet(s Status) diagnosis.Check {
	check := diagnosis.Check{Name: "verifier set", Asked: "the keys that verify tasks"}
	v := s.VerifierSet
	if v == nil || v.ExpiresAt.IsZero() {
		return check.OK("those of the bundle; the agent loads a set with its next poll")
	}
	answer := fmt.Sprintf("version %d of epoch %d, expires %s", v.Version, v.Epoch, text.FormatTime(v.ExpiresAt))
	if time.Now().After(v.ExpiresAt) {
		return check.Failed(answer, diagnosis.ControlPlane, "gpuaas trust show; the schedule maintain-trust renews the set")
	}
	return check.OK(answer)
}

func checkWorkloads(c Config, s Status) diagnosis.Check {
	check := diagnosis.Check{Name: "workload driver", Asked: "the workloads of the node"}
	if c.WorkloadDriver == "" {
		return check.Failed("the node has no workload driver, so its drains park", diagnosis.Operator,
			fmt.Sprintf("set GPUAAS_WORKLOAD_DRIVER in the env file and restart the agent; gpuaas node set %s --workload-driver DRIVER keeps it for new bundles", c.NodeID))
	}
	if s.WorkloadsFault != "" {
		return check.Failed(s.WorkloadsFault, diagnosis.Node, "correct the driver; a drain of this node parks until then")
	}
	return check.OK(fmt.Sprintf("%d workloads", len(s.Workloads)))
}
