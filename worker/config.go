// Package worker is the gpuaas-worker program: it runs lifecycle workflows and
// their activities. It also prepares an installation (Setup).
//
// Start at run.go. Only wire.go connects adapters to ports.
package worker

import (
	"net/url"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// The shortest retentions: the functions of the database delete nothing newer.
const (
	minRetain        = 24 * time.Hour
	minRetainAudit   = 7 * 24 * time.Hour
	minRetainRepairs = recovery.LookBack
)

// config is the program's configuration.
type config struct {
	daemon.Common
	daemon.Engines
	ProviderSettings
	Versioning       bool          `env:"GPUAAS_WORKER_VERSIONING" envDefault:"true" help:"Register this worker's version with Temporal. Only the current version receives work; see 'gpuaas admin promote'. Disable it for a Temporal server without worker deployments."`
	RotatorRoleID    string        `env:"GPUAAS_VAULT_ROTATOR_ROLE_ID_FILE" help:"File with the role ID of the rotator's Vault login. With it, this worker also rotates keys and renews the verifier set; set it for one or two workers."`
	RotatorSecretID  string        `env:"GPUAAS_VAULT_ROTATOR_SECRET_ID_FILE" help:"File with the secret ID of the rotator's Vault login."`
	RotatorKubeRole  string        `env:"GPUAAS_VAULT_ROTATOR_KUBERNETES_ROLE" help:"Role of the rotator's Vault login with the pod's service account, in place of its AppRole."`
	CheckpointEvery  time.Duration `env:"GPUAAS_AUDIT_CHECKPOINT_INTERVAL" envDefault:"1m" help:"Least time between two signed checkpoints of the audit trail."`
	RetainTasks      time.Duration `env:"GPUAAS_RETAIN_TASKS" envDefault:"2160h" help:"How long finished node tasks with their results are kept. Keep them for longer than Temporal keeps closed workflows. 0 keeps them forever."`
	RetainIdentities time.Duration `env:"GPUAAS_RETAIN_IDENTITIES" envDefault:"9600h" help:"How long ended certificates, tokens and keys of nodes are kept after they expired. 0 keeps them forever."`
	RetainMessages   time.Duration `env:"GPUAAS_RETAIN_MESSAGES" envDefault:"720h" help:"How long messages to workflows that are gone are kept. 0 keeps them forever."`
	RetainRepairs    time.Duration `env:"GPUAAS_RETAIN_REPAIRS" envDefault:"4320h" help:"How long the decisions of health recovery and the outcomes of repairs are kept: at least as long as a policy looks back, 720h. 0 keeps them forever."`
	RetainEvidence   time.Duration `env:"GPUAAS_RETAIN_EVIDENCE" envDefault:"9600h" help:"How long the RMA bundles of nodes that no repair cured are kept, also after the removal of the node. 0 keeps them forever."`
	RetainSignals    time.Duration `env:"GPUAAS_RETAIN_SIGNALS" envDefault:"2160h" help:"How long the signals of nodes are kept. A policy of the health recovery can be replayed on those that are kept. 0 keeps them forever."`
	RetainAudit      time.Duration `env:"GPUAAS_RETAIN_AUDIT" envDefault:"9600h" help:"How long audit events are kept in the database before they are archived and deleted. 0 keeps them forever, and so does a worker without GPUAAS_AUDIT_ARCHIVE_DIR."`
	ArchiveDir       string        `env:"GPUAAS_AUDIT_ARCHIVE_DIR" help:"Folder for archived audit events, which all workers share and which is backed up."`
	Sweep            string        `env:"GPUAAS_SWEEP" envDefault:"report" help:"What happens to machines at providers whose instance ended: report lists them in 'gpuaas stuck', delete also deletes them after 30 minutes. All workers need the same value. A machine that the database does not have is only reported."`
	ActivitySlots    int           `env:"GPUAAS_ACTIVITY_SLOTS" help:"Largest number of activities, and of local activities, that run at the same time. Default: twice the number of database connections."`
}

// build returns the build ID that this worker polls with.
func (c *config) build() string {
	if !c.Versioning {
		return temporal.Unversioned
	}
	return BuildID()
}

// Check reports faults in the values.
func (c *config) Check(f *daemon.Faults) {
	c.Engines.Check(f)
	c.ProviderSettings.Check(f, c.Env)
	if u, err := url.Parse(c.MAASURL); err == nil { // the API key is a part of each request
		c.Plaintext(f, "MAAS_API_BASE_URL", u.Hostname(), u.Scheme == "https")
	}
	checkSweep(f, c.Sweep)
	f.Check(c.CheckpointEvery <= 0, "GPUAAS_AUDIT_CHECKPOINT_INTERVAL must be positive, for example 1m")
	if c.rotates() {
		f.VaultLogin("GPUAAS_VAULT_ROTATOR_", c.RotatorKubeRole, c.RotatorRoleID, c.RotatorSecretID)
	}
	checkRetain(f, "GPUAAS_RETAIN_TASKS", c.RetainTasks, minRetain)
	checkRetain(f, "GPUAAS_RETAIN_IDENTITIES", c.RetainIdentities, minRetain)
	checkRetain(f, "GPUAAS_RETAIN_MESSAGES", c.RetainMessages, minRetain)
	checkRetain(f, "GPUAAS_RETAIN_REPAIRS", c.RetainRepairs, minRetainRepairs)
	checkRetain(f, "GPUAAS_RETAIN_SIGNALS", c.RetainSignals, minRetain)
	checkRetain(f, "GPUAAS_RETAIN_EVIDENCE", c.RetainEvidence, minRetain)
	checkRetain(f, "GPUAAS_RETAIN_AUDIT", c.RetainAudit, minRetainAudit)
	f.Check(c.ActivitySlots < 0, "GPUAAS_ACTIVITY_SLOTS must not be negative, for example 20")
}

// rotates reports whether a login of the rotator is configured.
func (c *config) rotates() bool { return c.RotatorRoleID+c.RotatorSecretID+c.RotatorKubeRole != "" }

func checkRetain(f *daemon.Faults, name string, keep, least time.Duration) {
	f.Check(keep != 0 && keep < least, "%s must be 0 or at least %.0fh", name, least.Hours())
}

// Secrets implements daemon's list of secrets that must never reach Temporal.
func (c *config) Secrets() []schema.Secret {
	return append(append(c.Engines.Secrets(), c.MAASToken), daemon.FileSecret(c.RotatorSecretID)...)
}

// defaults returns a configuration with the defaults that depend on the program.
// A worker has no callers, so it needs no lame-duck period.
func defaults() *config {
	return &config{Common: daemon.Common{MetricsAddr: "127.0.0.1:9090", DrainTimeout: 10 * time.Second}}
}
