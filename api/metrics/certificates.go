package metrics

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// CertificateAge is the remaining validity of a node's current certificate, for
// the gauges of renewal.
type CertificateAge struct {
	NodeID string
	// Left is the remaining validity, negative after it expired.
	Left time.Duration
	// Life is the whole validity.
	Life time.Duration
	// SinceRenewal is the time since it was issued.
	SinceRenewal time.Duration
}

// UnpromotedCertificate is a certificate that was never used.
type UnpromotedCertificate struct {
	NodeID   string
	Serial   string
	Via      trust.IssueMethod
	IssuedAt time.Time
}
