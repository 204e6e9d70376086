package store

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Config says which database to use and how.
type Config struct {
	// URL is a Postgres connection URL. It may hold a password and is never
	// repeated in an error.
	URL string
	// MaxConns bounds the pool. Defaults to 10.
	MaxConns int32
	// CreatingProviders names the providers that make machines, whose nodes may
	// be provisioned before they are enrolled. Defaults to none.
	CreatingProviders []string
}

// Store is the database. It implements activities.Records, activities.Tasks,
// nodeapi.Store and adminapi.Store; Ledger and Outbox give the other two ports.
// It is safe for concurrent use.
type Store struct{}

var errSkeleton = errors.New("store: not built yet")

// Open connects to the database. The caller closes the store.
func Open(ctx context.Context, c Config) (*Store, error) { return nil, errSkeleton }

// Migrate brings the database's schema up to date. Two calls at once are safe.
func Migrate(ctx context.Context, url string) error { return errSkeleton }

// Close gives every connection back.
func (s *Store) Close() {}

// Ping answers nil when the database can be reached.
func (s *Store) Ping(ctx context.Context) error { return errSkeleton }

// Ledger implements activities.Ledger.
type Ledger struct{ s *Store }

// Ledger returns the resource ledger.
func (s *Store) Ledger() *Ledger { return &Ledger{s} }

// Outbox implements relay.Outbox.
type Outbox struct{ s *Store }

// Outbox returns the outbox, woken by the listener.
func (s *Store) Outbox(l *Listener) *Outbox { return &Outbox{s} }

// Listener implements nodeapi.Wakes.
type Listener struct{}

// NewListener returns a listener on the database's notifications; Run runs it.
func NewListener(url string, log *slog.Logger) (*Listener, error) { return nil, errSkeleton }

// Run listens until the context ends, reconnecting whenever it must.
func (l *Listener) Run(ctx context.Context) error { return errSkeleton }

func (l *Listener) Subscribe(nodeID string) (wake <-chan struct{}, cancel func()) {
	return nil, func() {}
}

func (s *Store) Claim(ctx context.Context, r schema.ClaimRequest) (schema.Claim, error) {
	return schema.Claim{}, errSkeleton
}
func (s *Store) Advance(ctx context.Context, f schema.Fence, a schema.Advance) error {
	return errSkeleton
}
func (s *Store) Finish(ctx context.Context, f schema.Fence, e schema.Finish) error {
	return errSkeleton
}
func (s *Store) Enrollment(ctx context.Context, nodeID string) (schema.EnrollmentProgress, error) {
	return schema.EnrollmentProgress{}, errSkeleton
}
func (s *Store) LastHeartbeat(ctx context.Context, nodeID string) (time.Time, error) {
	return time.Time{}, errSkeleton
}
func (s *Store) Prepare(ctx context.Context, t schema.TaskSpec, o schema.TaskOwner) (schema.TaskRow, error) {
	return schema.TaskRow{}, errSkeleton
}
func (s *Store) Attach(ctx context.Context, taskID string, envelope []byte, expiresAt time.Time) error {
	return errSkeleton
}
func (s *Store) Void(ctx context.Context, f schema.Fence) error { return errSkeleton }

func (l *Ledger) Plan(ctx context.Context, f schema.Fence, r schema.Resource) (schema.Resource, error) {
	return schema.Resource{}, errSkeleton
}
func (l *Ledger) Created(ctx context.Context, f schema.Fence, resourceID, externalID string) error {
	return errSkeleton
}
func (l *Ledger) Released(ctx context.Context, f schema.Fence, resourceID string) error {
	return errSkeleton
}
func (l *Ledger) Open(ctx context.Context, nodeID string) ([]schema.Resource, error) {
	return nil, errSkeleton
}

func (s *Store) Authenticate(ctx context.Context, id schema.Identity, cert schema.CertFacts) (schema.Caller, error) {
	return schema.Caller{}, errSkeleton
}
func (s *Store) ClaimToken(ctx context.Context, c schema.TokenClaim) (schema.Claimed, error) {
	return schema.Claimed{}, errSkeleton
}
func (s *Store) StorePending(ctx context.Context, nodeID string, incarnation int64, tokenID string, cert schema.CertFacts, correlationID string) error {
	return errSkeleton
}
func (s *Store) Polled(ctx context.Context, c schema.Caller) error { return errSkeleton }
func (s *Store) NextTask(ctx context.Context, c schema.Caller, have []string, lease time.Duration) (*schema.TaskOffer, error) {
	return nil, errSkeleton
}
func (s *Store) Progress(ctx context.Context, c schema.Caller, taskID string, p schema.TaskProgress, lease time.Duration) (schema.ProgressAnswer, error) {
	return schema.ProgressAnswer{}, errSkeleton
}

// Result returns the task's type when this call stored the result, and "" when
// the same result stood already (nodeapi.Store, for tasks_total).
func (s *Store) Result(ctx context.Context, c schema.Caller, taskID string, r schema.TaskResult) (schema.TaskType, error) {
	return "", errSkeleton
}

func (s *Store) Heartbeat(ctx context.Context, c schema.Caller, h schema.HeartbeatRequest) error {
	return errSkeleton
}

func (s *Store) Register(ctx context.Context, r schema.RegisterNodeRequest, by schema.Subject) (schema.NodeView, error) {
	return schema.NodeView{}, errSkeleton
}
func (s *Store) Node(ctx context.Context, idOrHost string) (schema.NodeView, error) {
	return schema.NodeView{}, errSkeleton
}
func (s *Store) Nodes(ctx context.Context) ([]schema.NodeView, error) { return nil, errSkeleton }
func (s *Store) IssueToken(ctx context.Context, t schema.MintedToken, by schema.Subject) error {
	return errSkeleton
}
func (s *Store) Audit(ctx context.Context, stream string, after int64, limit int) ([]schema.AuditEvent, error) {
	return nil, errSkeleton
}
func (s *Store) AuditStreams(ctx context.Context) ([]string, error) { return nil, errSkeleton }
func (s *Store) Operations(ctx context.Context, nodeID string, open bool) ([]schema.OperationSummary, error) {
	return nil, errSkeleton
}

// MarkSilent moves active nodes without a heartbeat for olderThan to offline,
// with an audit row each, and returns their ids.
func (s *Store) MarkSilent(ctx context.Context, olderThan time.Duration) ([]string, error) {
	return nil, errSkeleton
}

// NodeCounts counts nodes by state, for the gauges.
func (s *Store) NodeCounts(ctx context.Context) ([]schema.NodeCount, error) { return nil, errSkeleton }

// StuckCounts counts parked operations by phase and reason, for the gauges.
func (s *Store) StuckCounts(ctx context.Context) ([]schema.StuckCount, error) {
	return nil, errSkeleton
}

// TaskLeases counts unfinished tasks by status, for the gauges.
func (s *Store) TaskLeases(ctx context.Context) ([]schema.TaskCount, error) { return nil, errSkeleton }

func (o *Outbox) Take(ctx context.Context, limit int) ([]schema.OutboxMessage, error) {
	return nil, errSkeleton
}
func (o *Outbox) Delivered(ctx context.Context, id int64) error            { return errSkeleton }
func (o *Outbox) Orphaned(ctx context.Context, id int64, why string) error { return errSkeleton }
func (o *Outbox) Failed(ctx context.Context, id int64, why string) error   { return errSkeleton }
func (o *Outbox) Wake() <-chan struct{}                                    { return nil }
