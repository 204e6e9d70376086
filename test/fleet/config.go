package fleet

import (
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"
)

// MaxSize is the largest fleet of one process.
const MaxSize = 20_000

// Config is what a fleet is.
type Config struct {
	// Size is how many nodes there are.
	Size int
	// State is the folder of all nodes' identities and journals. A later fleet
	// with it and the same prefix is of the same nodes.
	State string
	// Prefix begins every host name; -0001 follows.
	Prefix string
	// SKU and Region are what missing nodes are registered with.
	SKU, Region string
	// AdminURL is the admin API's; Token its bearer token.
	AdminURL, Token string
	// NodeURL replaces the node API's address of the bundles, "" does not.
	NodeURL string

	Misbehave []Share
	// Seed decides who misbehaves.
	Seed uint64
	// TaskTime is how long a task's work takes.
	TaskTime Span
	// Workloads is how many simulated workloads each node has.
	Workloads int
	// RestartAfter is about how long a silent or dead agent stays away.
	RestartAfter time.Duration
	// FlapEvery is about how long a flapping agent lives.
	FlapEvery time.Duration
	// ReportEvery is the interval of the report's lines.
	ReportEvery time.Duration
	// Log gets what the agents say.
	Log *slog.Logger
}

// hostPrefix makes host names that are plain file names too.
var hostPrefix = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,40}$`)

// Validate checks the configuration and lists every fault at once.
func (c Config) Validate() error {
	var err error
	check := func(ok bool, reason, format string, args ...any) {
		if !ok {
			err = errors.Join(err, wrong(reason, format, args...))
		}
	}
	check(c.Size >= 1 && c.Size <= MaxSize, "size", "N %d: want 1 to %d", c.Size, MaxSize)
	check(c.State != "", "state", "--state is not set")
	check(hostPrefix.MatchString(c.Prefix), "prefix", "--prefix %q: want lower-case letters, digits and -, 41 at most", c.Prefix)
	check(c.SKU != "", "sku", "--sku is empty")
	check(c.Region != "", "region", "--region is empty")
	check(c.AdminURL != "", "admin_url", "the admin API's URL is not set (GPUAAS_API_URL)")
	check(c.Workloads >= 0 && c.Workloads <= 64, "workloads", "--workloads %d: want 0 to 64", c.Workloads)
	check(c.RestartAfter > 0, "restart_after", "--restart-after %s: want more than nothing", c.RestartAfter)
	check(c.FlapEvery > 0, "flap_every", "--flap-every %s: want more than nothing", c.FlapEvery)
	check(c.ReportEvery > 0, "report_every", "--report-every %s: want more than nothing", c.ReportEvery)
	if c.Size >= 1 && c.Size <= MaxSize {
		_, assignErr := assign(c.Size, c.Misbehave, c.Seed)
		err = errors.Join(err, assignErr)
	}
	return err
}

func (c Config) folder(host string) folder { return folder(filepath.Join(c.State, host)) }
