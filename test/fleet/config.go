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

// Config is the configuration of a fleet.
type Config struct {
	// Size is the number of nodes.
	Size int
	// State is the folder with the nodes' identities and journals. A later fleet with
	// the same folder and prefix has the same nodes.
	State string
	// Prefix is the first part of every host name, before -0001.
	Prefix string
	// SKU and Region are those of nodes that must be registered.
	SKU, Region string
	// RackSize is the number of nodes of a rack, which is the label rack of a node that must be
	// registered. 0 sets no label.
	RackSize int
	// AdminURL is the URL of the admin API, Token its bearer token.
	AdminURL, Token string
	// NodeURL replaces the node API's address in the bundles unless it is empty.
	NodeURL string

	// Faults is the path of the file with the faults of the nodes' machines (simulate.Faults), ""
	// for none.
	Faults    string
	Misbehave []Share
	// Seed selects the nodes that misbehave.
	Seed uint64
	// TaskTime is the duration of a task's work.
	TaskTime Span
	// Workloads is the number of simulated workloads of each node.
	Workloads int
	// RestartAfter is roughly how long a silent or dead agent stays down.
	RestartAfter time.Duration
	// FlapEvery is roughly how long a flapping agent runs.
	FlapEvery time.Duration
	// ReportEvery is the interval between two lines of the report.
	ReportEvery time.Duration
	// Log receives the agents' logs.
	Log *slog.Logger
}

// hostPrefix matches prefixes of host names that are also valid file names.
var hostPrefix = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,40}$`)

// Validate checks the configuration and returns all errors together.
func (c Config) Validate() error {
	var err error
	check := func(ok bool, reason, format string, args ...any) {
		if !ok {
			err = errors.Join(err, invalid(reason, format, args...))
		}
	}
	check(c.Size >= 1 && c.Size <= MaxSize, "size", "N %d: want 1 to %d", c.Size, MaxSize)
	check(c.State != "", "state", "--state is not set")
	check(hostPrefix.MatchString(c.Prefix), "prefix", "--prefix %q: want lower-case letters, digits and -, 41 at most", c.Prefix)
	check(c.SKU != "", "sku", "--sku is empty")
	check(c.Region != "", "region", "--region is empty")
	check(c.RackSize >= 0, "rack_size", "--rack-size %d: want 0 or more", c.RackSize)
	check(c.AdminURL != "", "admin_url", "the admin API's URL is not set (GPUAAS_API_URL)")
	check(c.Workloads >= 0 && c.Workloads <= 64, "workloads", "--workloads %d: want 0 to 64", c.Workloads)
	check(c.RestartAfter > 0, "restart_after", "--restart-after %s: want more than 0", c.RestartAfter)
	check(c.FlapEvery > 0, "flap_every", "--flap-every %s: want more than 0", c.FlapEvery)
	check(c.ReportEvery > 0, "report_every", "--report-every %s: want more than 0", c.ReportEvery)
	if c.Size >= 1 && c.Size <= MaxSize {
		_, assignErr := assign(c.Size, c.Misbehave, c.Seed)
		err = errors.Join(err, assignErr)
	}
	return err
}

func (c Config) folder(host string) folder { return folder(filepath.Join(c.State, host)) }
