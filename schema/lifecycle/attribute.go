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
	AttrDeadlineAt  = "DeadlineAt"
	AttrStuckSince  = "StuckSince"
)

// Attributes returns every search attribute; true means that it is a datetime.
func Attributes() map[string]bool {
	return map[string]bool{AttrNodeID: false, AttrHost: false, AttrPhase: false, AttrAttention: false,
		AttrStuckReason: false, AttrOperationID: false, AttrRequester: false, AttrProvider: false,
		AttrRegion: false, AttrDeadlineAt: true, AttrStuckSince: true}
}

// MemoStuck is the field of a run's memo that holds its Stuck object while it is
// parked, so that a list needs no worker.
const MemoStuck = "stuck"
