package audit

// Subject identifies the author of a request in the audit trail.
type Subject struct {
	Actor string
	// Via is the interface of the request: "api" or "temporal".
	Via           string
	CorrelationID string
}
