package metrics

// CertificateCounts summarizes the certificates that nodes hold.
type CertificateCounts struct {
	// ShareLeft is the remaining share of the lifetime of the current certificate
	// that expires first, from 0 to 1; 1 without certificates.
	ShareLeft float64
	// Overdue counts current certificates that should have been renewed already.
	Overdue int64
	// Unpromoted counts certificates that were issued over UnpromotedAfter ago and
	// never used.
	Unpromoted int64
}
