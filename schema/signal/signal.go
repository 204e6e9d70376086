// Package signal describes the signals and conditions of nodes as the admin API returns them. Package
// health describes what they mean.
package signal

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// MaxPerHour is how many signals a node can cause in an hour. Further ones are counted in one signal
// of the type Dropped, whose detail is the only part of a signal that ever changes.
const MaxPerHour = 256

// Dropped is the type of the signal that counts the signals of a node beyond MaxPerHour.
const Dropped health.SignalType = "signals.dropped"

// ReasonEnded is the reason of the signal about an unhealthy condition that is missing from the
// next report: its checker no longer applies. The signal's status is unknown.
const ReasonEnded = "ended"

// Condition is a condition of a node. Its Since is by the clock of the database. A condition whose
// reporter has not reported for wire.StaleHealth, or not since the node was enrolled again, has the status
// unknown.
type Condition struct {
	health.Condition
	// Source is the reporter: agent or cluster-agent.
	Source health.Source `json:"source"`
	// ReportedAt is when the control plane received the reporter's last report.
	ReportedAt time.Time `json:"reported_at"`
	// BootID is the boot that the report is about.
	BootID string `json:"boot_id,omitempty"`
	// Stale is set if the status is unknown because reports are missing.
	Stale bool `json:"stale,omitempty"`
}

// List is the response of GET /api/v1/admin/signals and /nodes/{node}/signals, newest signal first.
type List struct {
	Signals []health.Signal `json:"signals"`
	// NextPageToken selects the next page, empty on the last one.
	NextPageToken string `json:"next_page_token,omitempty"`
}

// Answer is the response to a health report about a node.
type Answer struct {
	// Accepted is false if the control plane has a newer report of the reporter.
	Accepted bool `json:"accepted"`
}
