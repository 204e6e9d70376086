package lifecycle

// The custom search attributes. All are keywords but the last two, which are
// datetimes.
const (
	AttrNodeID      = "NodeId"
	AttrHost        = "Host"
	AttrPhase       = "Phase"
	AttrAttention   = "Attention"
	AttrStuckReason = "StuckReason"
	AttrOperationID = "OperationId"
	AttrRequester   = "Requester"
	AttrProvider    = "Provider"
	AttrRegion      = "Region"
	AttrBatchID     = "BatchId"
	AttrDeadlineAt  = "DeadlineAt"
	AttrStuckSince  = "StuckSince"
)

// KeywordAttributes returns the search attributes of type keyword.
func KeywordAttributes() []string {
	return []string{AttrNodeID, AttrHost, AttrPhase, AttrAttention, AttrStuckReason,
		AttrOperationID, AttrRequester, AttrProvider, AttrRegion, AttrBatchID}
}

// DatetimeAttributes returns the search attributes of type datetime.
func DatetimeAttributes() []string { return []string{AttrDeadlineAt, AttrStuckSince} }
