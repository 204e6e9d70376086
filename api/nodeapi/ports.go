package nodeapi

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Identities authenticates nodes and records their polls and the certificates
// issued to them.
// Errors are *schema.Error. Rejections are audited.
//
// A claim reserves an identity for the key of one certificate request before
// anything is signed. Repeating it with the same key returns the same claim, so
// an agent that lost the response may repeat the request until the certificate's first
// use. A key that another node has used is KindInvalidRequest with reason
// key_in_use, because one machine is then a copy of the other.
type Identities interface {
	// Authenticate checks a certificate against the node's row: incarnation,
	// serial among current and pending, state. Rejections are
	// KindInvalidNodeIdentity with one of schema's reasons. The first use of a
	// pending certificate promotes it and consumes its token in the same
	// transaction. A serial that was promoted and then replaced locks the node
	// after trust.InFlight, because two machines hold the identity; a serial that
	// was replaced before its first use is only rejected.
	Authenticate(ctx context.Context, id trust.Identity, cert trust.CertFacts) (Caller, error)
	// RecordPoll stores an authenticated poll, the node's verifier set and CA bundle, and
	// notifies the workflow of the incarnation's first poll. Every poll calls it,
	// so it writes only what has changed since c was read. It raises the counters on
	// record to the poll's Floors, by at most wire.MaxFloorRaise and at most once a
	// minute, with an audit row each: they are behind after a restore of the database.
	RecordPoll(ctx context.Context, c Caller, poll wire.PollRequest) error
	// RecordSession records which agent process polls. Every poll calls it, and it writes
	// only if another process made the poll before. A process that polls again after a
	// newer one raises an alarm, unless the poll may have been delayed. When it does so
	// twice, in polls that are trust.SessionGap apart, it locks the node
	// (KindInvalidNodeIdentity node_locked), because two machines hold the identity. A
	// repeated poll, a restarted agent and a lost response never lock it.
	RecordSession(ctx context.Context, c Caller, p wire.PollRequest) error
	// Removal returns the signed removal of a removed node's identity, nil if none was
	// signed or the last one has expired.
	Removal(ctx context.Context, nodeID string) ([]byte, error)
	// ClaimToken claims an enrollment token, sets the node to enrolling and
	// notifies the workflow. Rejections: KindUnauthenticated (unknown token, or
	// one of another node), KindTokenExpired, KindTokenConsumed,
	// KindInvalidNodeIdentity node_removed, KindInvalidRequest (the node's state
	// does not allow enrollment). The expiry applies to the first claim only. A
	// token of purpose reissue keeps the node's state and starts the next
	// incarnation: it voids the previous identity and its recovery token, and
	// unlocks a locked node. A claimed token with another key raises an alarm. It locks
	// the node if that request proves the recovery key of the previous incarnation and
	// the claim did not (node_locked): another machine has claimed the node's token.
	ClaimToken(ctx context.Context, c TokenClaim) (ClaimResult, error)
	// ClaimRenewal claims the next certificate of an authenticated caller. A fresh
	// key with the current sequence replaces an earlier claim. An older sequence
	// with another key is a clone: the node is locked (KindInvalidNodeIdentity
	// node_locked).
	ClaimRenewal(ctx context.Context, c RenewClaim) (ClaimResult, error)
	// RecoveryFacts returns what a recovery request is verified against.
	// KindInvalidNodeIdentity node_removed or node_locked; KindUnauthenticated for
	// an unknown node, the same response as for a wrong token.
	RecoveryFacts(ctx context.Context, nodeID string) (RecoveryFacts, error)
	// ClaimRecovery claims the current or pending recovery token of the node's
	// incarnation. Rejections as for ClaimToken; an older sequence with another
	// key locks the node.
	ClaimRecovery(ctx context.Context, c RecoveryClaim) (ClaimResult, error)
	// RecordRefusals audits refused requests without an identity, one row for each
	// element.
	RecordRefusals(ctx context.Context, refused []RefusedRequests) error
	// StorePending stores an issued certificate and its recovery token in the
	// node's pending slot, replaces an unused one, and returns the identity's
	// sequence. The certificate's first use promotes both. KindTokenConsumed if
	// the key lost its claim during the signing: reason claim_replaced if a newer
	// renewal of the node has it, token_voided if its token was replaced or used.
	StorePending(ctx context.Context, n NewIdentity) (sequence int64, err error)
}

// Tasks dispatches the tasks of a node and records their progress and results.
// Errors are *schema.Error. The lease epoch fences every write.
type Tasks interface {
	// NextTask leases the node's next task, or returns nil if there is none. It
	// returns a pending task, or one whose lease has expired, but none in
	// poll.HeldTasks, which continue under their lease. A task that was dispatched
	// to an earlier poll of the same session and is not in HeldTasks was lost in
	// transit and is dispatched again at once, a limited number of times. A poll
	// older than the session's newest gets no task that was dispatched since.
	// keys are the IDs of the keys that nodes accept; it returns no task that is signed with
	// another one. nil accepts every key.
	NextTask(ctx context.Context, c Caller, poll wire.PollRequest, lease time.Duration, keys []string) (*Dispatch, error)
	// CanceledTasks returns the held tasks that were canceled or voided, or that
	// an operator asked to cancel.
	CanceledTasks(ctx context.Context, c Caller, held []string) ([]string, error)
	// Progress extends the lease, or returns KindLeaseLost. A lost task whose
	// epoch is still the newest resumes, and its workflow is notified. A destructive
	// task that sent no progress under its lease has not begun. After the lease has
	// ended by the database's time, it may still begin, unless it is lost, was
	// dispatched again or its envelope has expired: KindLeaseLost. The result's
	// Owner is set if an activity heartbeat is due: at most once every
	// task.HeartbeatInterval across all replicas.
	Progress(ctx context.Context, c Caller, taskID string, p task.Progress, lease time.Duration) (ProgressResult, error)
	// SetActivityState stores the state of the task's activity, which later
	// progress responses repeat until it changes.
	SetActivityState(ctx context.Context, taskID string, s ActivityState) error
	// Result stores a result and enqueues its delivery in one transaction. It
	// returns the task's type if this call stored the result, and "" if the same
	// result was stored before. KindLeaseLost, with an audit row, for a stale
	// epoch or a voided task; KindNotFound for an unknown task; KindInvalidRequest
	// envelope_mismatch, with an audit row, for a result of another body than the
	// signed one.
	Result(ctx context.Context, c Caller, taskID string, r ReceivedResult) (task.Type, error)
	// IssueForTask issues a token of purpose reissue to the node that holds the lease of a
	// task of type task.NewIdentity, and voids its unclaimed tokens. It returns when the
	// token expires, life after the database's time. KindLeaseLost for any other task.
	IssueForTask(ctx context.Context, c Caller, taskID string, m trust.MintedToken, life time.Duration) (expires time.Time, err error)
}

// Heartbeats stores what nodes report about themselves. Errors are *schema.Error.
type Heartbeats interface {
	// Heartbeat stores the state that an authenticated node reported with its poll
	// and returns an offline node to active. It records the end of a silence, another boot and
	// each change of a condition as a signal, once. A report about its health that another one
	// overtook changes nothing. KindInvalidNodeIdentity if the node has begun another
	// incarnation than c's.
	Heartbeat(ctx context.Context, c Caller, h wire.Heartbeat) error
}

// Notifier wakes open polls.
type Notifier interface {
	// Subscribe returns a channel that receives a value when a task was enqueued
	// for the node or the node was fenced (removed, locked, or superseded by a
	// newer incarnation than the caller's). Notifications are coalesced. A lost
	// fence notification is repeated within four seconds, and a reconnected
	// listener wakes every poll. The channel is closed within ten seconds when the
	// process can no longer find out whether the node was fenced. cancel ends the
	// subscription.
	Subscribe(nodeID string, incarnation int64) (wake <-chan struct{}, cancel func())
}

// Grants signs the lease grants of this replica. It makes no remote calls.
type Grants interface {
	// Ready returns nil if Sign can be called now, and Sign's error otherwise.
	// changed is closed when the answer may have changed.
	Ready() (changed <-chan struct{}, err error)
	// Sign returns the DSSE envelopes of the grant and of the delegation of its
	// key. KindServiceUnavailable without a valid delegation.
	Sign(g task.Grant) (grant, key json.RawMessage, err error)
}

// VerifierSets returns the published verifier sets. Errors are *schema.Error.
type VerifierSets interface {
	// NewestSet returns the newest set from a cache. KindServiceUnavailable if
	// there is none.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// SetsAfter returns up to limit sets above a version, in order.
	SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error)
	// AcceptedKeys returns the IDs of the keys whose tasks the newest set accepts, nil if
	// there is no set.
	AcceptedKeys() []string
	// Replaced returns a channel that is closed when another set becomes the newest.
	Replaced() <-chan struct{}
}

// Heartbeater heartbeats the Temporal activity that waits for a task.
type Heartbeater interface {
	// RecordHeartbeat records a heartbeat and returns the activity's state. A
	// closed or unknown run returns Cancel. KindServiceUnavailable if Temporal is
	// unavailable.
	RecordHeartbeat(ctx context.Context, o task.Owner, b TaskHeartbeat) (ActivityState, error)
}

// Issuer issues node certificates.
type Issuer interface {
	// Issue signs a certificate for the key of a CSR that passed trust.CheckCSR
	// and for the identity; it copies nothing else from the CSR. The leaf was
	// compared with the request field by field. KindServiceUnavailable if Vault is
	// sealed or unavailable.
	Issue(ctx context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error)
	// Roots returns the live generations of the node CA.
	Roots(ctx context.Context) ([]*x509.Certificate, error)
	// Retired returns the retired generations. Their certificates are rejected
	// with a reason of their own.
	Retired(ctx context.Context) ([]*x509.Certificate, error)
}

// CAs returns CA bundles as PEM, from a cache while Vault is unavailable.
// KindServiceUnavailable while the cache is empty.
type CAs interface {
	// ServerCA verifies the node API's server certificate.
	ServerCA(ctx context.Context) (string, error)
	// NodeCA verifies node certificates: the live generations of the node CA.
	NodeCA(ctx context.Context) (string, error)
}

// Bundles exchanges one-time references for bootstrap bundles.
type Bundles interface {
	// Fetch consumes a reference and returns its bundle with a freshly minted
	// token. KindUnauthenticated, KindTokenConsumed or KindTokenExpired for an
	// invalid reference. A failure before the reference is consumed leaves it
	// usable; after a later failure, or a lost response, the host needs a new
	// script: gpuaas node bootstrap-script NODE.
	Fetch(ctx context.Context, reference string, by audit.Subject) (trust.BootstrapBundle, error)
	// Script returns the node of a reference and the script that installs the agent on its
	// host, which then exchanges the reference. It does not consume the reference. Errors as
	// for Fetch; KindInvalidRequest no_package if there is no package to install.
	Script(ctx context.Context, reference string, by audit.Subject) (nodeID, script string, err error)
}

// Metrics counts the events of the node API.
type Metrics interface {
	PollOpened() (closed func())
	// Dispatched records a task's first dispatch, waited after its creation.
	Dispatched(waited time.Duration)
	// Withheld counts polls that skipped dispatch because no lease grant could be
	// signed.
	Withheld()
	TaskEnded(t task.Type, s task.Status)
	// Issued counts a certificate request by its outcome; nil for a certificate.
	Issued(method trust.IssueMethod, err error)
	// Budget records a decision of the issuance budget and the remaining tokens.
	Budget(priority string, granted bool, left float64)
	// Limited counts a request over the rate limit of a node or remote address.
	Limited(limit string)
	// UnauthenticatedRefused counts a refused request without an identity.
	UnauthenticatedRefused(reason string)
	IdentityRefused(reason string)
}
