package audit

// Subject is who asks, for the audit.
type Subject struct {
	Actor         string
	CorrelationID string
}
