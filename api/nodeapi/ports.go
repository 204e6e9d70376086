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

// Store is what the node API needs of the database. Errors are *schema.Error.
type Store interface {
	// Authenticate checks a caller's certificate facts against the node's row:
	// incarnation, serial among current and pending, state. The first use of a
	// pending certificate promotes it and consumes the token it came from, in
	// the same transaction as the audit row. Refusals are
	// KindInvalidNodeIdentity with a reason of schema (node_removed,
	// node_locked, serial_superseded, identity_mismatch). A serial that was
	// promoted and replaced is a clone's after trust.InFlight: it locks the
	// node; one that was replaced before its first use is refused quietly.
	// Caller.Idle says that NextTask would find nothing now: who subscribed to
	// the node's wakes before it asked need not ask for a task.
	Authenticate(ctx context.Context, id trust.Identity, cert trust.CertFacts) (Caller, error)
	// ClaimToken claims a token for a key in one conditional update: issued, or
	// already claimed by the same key. It sets the node to enrolling and writes
	// the audit row and the workflow's event. Refusals, each with an audit row
	// and nothing changed: KindUnauthenticated (unknown or foreign token),
	// KindTokenExpired, KindTokenConsumed, KindInvalidNodeIdentity node_removed,
	// KindInvalidRequest (a state that does not enrol; reason key_in_use for a
	// key that another node once had, since one machine is then a copy of the
	// other).
	//
	// A token's end is that of its first claim. The key that claimed it may ask
	// again after that, until the certificate's first use: the claim voided what
	// the node had before, and the answer may be lost in a long dark time.
	//
	// A token of purpose reissue keeps the node's state and starts the next
	// incarnation with the claim, which voids the older identity, unlocks a
	// locked node and drops the older recovery token.
	ClaimToken(ctx context.Context, c TokenClaim) (ClaimResult, error)
	// ClaimRenewal lets an authenticated caller have its next certificate. The
	// same key again is answered the same; a sequence behind the one on record
	// with another key is a clone: the node is locked (KindInvalidNodeIdentity,
	// node_locked) with an audit row. A fresh key with the right sequence takes
	// the claim over from the key before it. KindInvalidRequest, reason
	// key_in_use, for a key that another node once had.
	ClaimRenewal(ctx context.Context, c RenewClaim) (ClaimResult, error)
	// RecoveryFacts returns what a recovery's signature is checked against.
	// KindInvalidNodeIdentity node_removed or node_locked, KindUnauthenticated
	// for an unknown node: the same answer as for a wrong token.
	RecoveryFacts(ctx context.Context, nodeID string) (RecoveryFacts, error)
	// ClaimRecovery claims a recovery token for a key in one conditional
	// update: the current or the pending one of the node's incarnation, not yet
	// claimed or claimed by the same key. Refusals, each with an audit row, as of
	// ClaimToken; a sequence behind the one on record with another key locks.
	ClaimRecovery(ctx context.Context, c RecoveryClaim) (ClaimResult, error)
	// StorePending keeps the issued certificate and its recovery token in the
	// pending slot, replacing unused ones (whose certificate is then refused
	// without an alarm and whose recovery token is void). It returns the
	// identity's sequence. The certificate's first use promotes both. A claim that
	// its key lost while Vault signed is KindTokenConsumed: reason claim_replaced
	// when a newer renewal of the same node has it (the newer one's answer counts,
	// there is nothing to do), token_voided when its token was replaced or used.
	StorePending(ctx context.Context, n NewIdentity) (sequence int64, err error)
	// Polled records an authenticated poll and the version of the verifier set
	// that it names, 0 for none, which is written when it changed; the first one of an incarnation
	// makes the workflow's event. It is called for each poll and is cheap.
	Polled(ctx context.Context, c Caller, set int64) error
	// NextTask hands over the node's next task under a new lease, or returns
	// nil: one that waits, or whose lease ran out. One that was handed over
	// before is not, requeued or not, while its id is in ask.Have, which is what
	// the agent's journal lists as accepted or unreported: it goes on under the
	// lease it has. One that an earlier poll of the same process (ask.Number) was
	// handed and ask.Have does not name is handed over again at once, a few times:
	// the answer was lost. To a poll that an agent has given up nothing that it was
	// handed since is. The offer says the node's state and operation counter as of the hand-over.
	NextTask(ctx context.Context, c Caller, ask PollRequest, lease time.Duration) (*wire.TaskOffer, error)
	// TaskNews returns those of the node's tasks in have that its agent should ask
	// about at once: cancelled, voided, or asked to be cancelled.
	TaskNews(ctx context.Context, c Caller, have []string) ([]string, error)
	// Progress extends the lease, or answers KindLeaseLost. It writes one row and
	// notifies nobody. A lost task whose epoch is still the newest runs again,
	// and its workflow is told. Owner is set when the activity should be told
	// of it: at most once every task.HeartbeatInterval, whatever the number of
	// replicas.
	Progress(ctx context.Context, c Caller, taskID string, p task.Progress, lease time.Duration) (ProgressResult, error)
	// Told notes what the activity's heartbeat answered: later answers to the
	// agent repeat it until it changes.
	Told(ctx context.Context, taskID string, b HeartbeatReply) error
	// Result stores the result and the completion to deliver, in one
	// transaction. The same result again is nil; a stale epoch or a voided task
	// is KindLeaseLost with an audit row; an unknown task is KindNotFound. One of
	// another body than the signed one is KindInvalidRequest, reason
	// envelope_mismatch, with an audit row, and changes nothing else. It returns the task's type when this call stored the result, and "" when the
	// same result stood already.
	Result(ctx context.Context, c Caller, taskID string, r task.Result) (task.Type, error)
	// Heartbeat checks a caller as Authenticate does, with the same refusals and
	// the same promotion, and stores what the agent reports. Heartbeats that come
	// close together are stored together, so that one may wait a little; the
	// answer is the caller's own, and nil means that it is durable. Of two of one
	// identity that come together the later stands.
	Heartbeat(ctx context.Context, id trust.Identity, cert trust.CertFacts, h wire.HeartbeatRequest) error
}

// Grants signs what a hand-over promises, with the replica's delegated key.
type Grants interface {
	// Good answers nil when Sign can be called now, and otherwise why not, as
	// Sign would; mended is closed when that is over. It makes no remote call.
	Ready() (mended <-chan struct{}, err error)
	// Sign returns the DSSE envelopes of the grant and of the delegation of its
	// key. It makes no remote call. KindServiceUnavailable while no delegation
	// is good: then nothing may be handed over.
	Sign(g task.Grant) (grant, key json.RawMessage, err error)
}

// Sets are the verifier sets. Errors are *schema.Error.
type Sets interface {
	// NewestSet is cached and cheap. KindServiceUnavailable when there is none.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// SetsAfter returns up to limit sets above a version, in order.
	SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error)
}

// Beats tells Temporal that a task is worked on.
type Beats interface {
	// Beat records a heartbeat of the activity that waits for the task and
	// answers what an operator did to it. A run that is gone answers Cancel.
	// KindServiceUnavailable when Temporal is away: the task goes on.
	Beat(ctx context.Context, o task.Owner, b TaskHeartbeat) (HeartbeatReply, error)
}

// Wakes tells when a node's poll should look again: a task was attached or the
// node was fenced. Lost connections heal by themselves and wake everybody.
type Wakes interface {
	// Subscribe returns a channel that gets a value after each wake of the
	// node, coalesced, and a function that ends the subscription. Where a
	// fence's wake was lost it comes within four seconds all the same; a newer
	// incarnation than the caller's is one.
	Subscribe(nodeID string, incarnation int64) (wake <-chan struct{}, cancel func())
}

// Issuer issues node certificates.
type Issuer interface {
	// Issue signs the key of a checked CSR for the identity. It takes nothing
	// else from the CSR. The answer's leaf was compared field by field with what
	// was asked. KindServiceUnavailable when Vault is sealed or away.
	Issue(ctx context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error)
	// Roots returns the live generations of the node CA.
	Roots(ctx context.Context) ([]*x509.Certificate, error)
	// Retired returns generations that were live once. They open nothing; it is
	// only said of what they issued that its issuer is retired.
	Retired(ctx context.Context) ([]*x509.Certificate, error)
}

// CAs hands out the CA bundles as PEM, from a cache while Vault is away.
// KindServiceUnavailable when there is none yet.
type CAs interface {
	// ServerCA verifies the node API's server certificate.
	ServerCA(ctx context.Context) (string, error)
	// NodeCA verifies node certificates: its live generations.
	NodeCA(ctx context.Context) (string, error)
}

// Bundles hands out bootstrap bundles for one-time references.
type Bundles interface {
	// Fetch spends a reference and returns its bundle with a token that is
	// minted in this very call. KindUnauthenticated, KindTokenConsumed or
	// KindTokenExpired for a reference that is not good. A bundle that cannot be
	// made leaves the reference unspent, but for a failure between spending it
	// and storing the token. There, and when the answer is lost, whoever asked
	// needs a new script: gpuaas node bootstrap-script NODE.
	Fetch(ctx context.Context, reference string, by audit.Subject) (trust.BootstrapBundle, error)
}
