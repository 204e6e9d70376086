package metrics

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// CertificateAge says how long a node's current certificate still lasts, for
// the gauges of renewal.
type CertificateAge struct {
	NodeID string
	// Left is the rest of its life, negative when it is over.
	Left time.Duration
	// Life is the whole of it.
	Life time.Duration
	// SinceRenewal is how long ago it was issued.
	SinceRenewal time.Duration
}

// UnpromotedCertificate is a certificate that waits for its first use.
type UnpromotedCertificate struct {
	NodeID   string
	Serial   string
	Via      trust.IssueMethod
	IssuedAt time.Time
}
