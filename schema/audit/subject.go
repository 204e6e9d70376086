package audit

// Subject is who asks, for the audit.
type Subject struct {
	Actor string
	// Via is the door the request came through: "api" or "temporal".
	Via           string
	CorrelationID string
}
