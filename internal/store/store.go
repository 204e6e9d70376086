package store

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/migrations"
)

// Config names the database and sets how the store uses it.
type Config struct {
	// URL is a Postgres connection URL. It may hold a password and never appears
	// in an error.
	URL string
	// MaxConns bounds the pool. Defaults to the URL's pool_max_conns, and to 10 without
	// it.
	MaxConns int32
	// CreatingProviders names the providers that create machines, whose nodes may
	// be provisioned before they are enrolled. Defaults to none.
	CreatingProviders []string
	// CallTimeout bounds every call in addition to the caller's context.
	// Defaults to 15 s.
	CallTimeout time.Duration
	// Relaying is the listener of a process that relays the outbox: its relay is
	// woken without a notification. Defaults to none.
	Relaying *Listener
	// Log gets a warning for each lost notification. Defaults to none.
	Log *slog.Logger
}

// notifyPause is the least time between two statements with notifications.
const notifyPause = 10 * time.Millisecond

// Store holds the repositories of one database. Each implements the ports named
// in its comment; the programs' wiring passes them on one by one. It is safe for
// concurrent use.
type Store struct {
	Operations *Operations
	Tasks      *Tasks
	Identities *Identities
	Rotations  *Rotations
	Inventory  *Inventory
	Admin      *Admin
	db         *db
}

// Operations stores operations and the resources they create. It implements
// activities.Records and activities.Ledger.
type Operations struct {
	db *db
	// creating names the providers that create machines.
	creating []string
}

// Tasks stores node tasks. It implements activities.Tasks, activities.Reclaimer,
// nodeapi.Tasks and adminapi.Tasks.
type Tasks struct{ db *db }

// Identities stores tokens, certificates, keys and verifier sets. It implements
// nodeapi.Identities and adminapi.EnrollmentTokens.
type Identities struct{ db *db }

// Inventory stores heartbeats and serves counts. It implements metrics.Counts and
// nodeapi.Heartbeats.
type Inventory struct{ db *db }

// Admin registers nodes, keeps the SKU catalog and serves the lists of the admin API.
// It implements adminapi.Nodes, adminapi.SKUs, adminapi.Operations and adminapi.Trail.
type Admin struct{ db *db }

// db is what the repositories share.
type db struct {
	*postgres.DB
	q        *sqlc.Queries
	notifier *postgres.Notifier
	relaying *Listener // nil in a process without a relay
}

// Open connects to the database and returns once a connection was made. The
// caller closes the store. A malformed URL is KindInvalidRequest, an unreachable
// database KindServiceUnavailable.
func Open(ctx context.Context, c Config) (*Store, error) {
	pg, err := postgres.Open(ctx, postgres.Config{URL: c.URL, MaxConns: c.MaxConns, CallTimeout: c.CallTimeout, Refusals: refusals()})
	if err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	d := &db{DB: pg, q: sqlc.New(pg.Pool()), notifier: postgres.NewNotifier(pg, notifyPause, c.Log), relaying: c.Relaying}
	return &Store{
		Operations: &Operations{db: d, creating: c.CreatingProviders},
		Tasks:      &Tasks{db: d},
		Identities: &Identities{db: d},
		Rotations:  &Rotations{db: d},
		Inventory:  &Inventory{db: d},
		Admin:      &Admin{db: d},
		db:         d,
	}, nil
}

// Close sends pending notifications, waits for open calls and closes every
// connection.
func (s *Store) Close() {
	s.db.notifier.Close()
	s.db.Close()
}

// Connections returns the largest number of connections to the database.
func (s *Store) Connections() int { return s.db.Size() }

// Ping returns nil if the database can be reached.
func (s *Store) Ping(ctx context.Context) error { return s.db.Ping(ctx) }

// Migrate updates the database's schema. It is idempotent and safe to
// run concurrently.
func Migrate(ctx context.Context, url string) error {
	return postgres.Migrate(ctx, url, migrations.Files)
}

// refusals maps the constraints that a request can violate to their errors.
func refusals() map[string]postgres.Refusal {
	return map[string]postgres.Refusal{
		hostLiveKey:              {Reason: "host_taken", Message: "another node that is not removed has this host name"},
		"nodes_pkey":             {Reason: "duplicate_node", Message: "this node id is already in use"},
		"nodes_sku_fkey":         {Reason: "sku_unknown", Message: "the SKU is not in the catalog"},
		"operations_pkey":        {Reason: "duplicate_operation", Message: "this operation id is already in use"},
		"enrollment_tokens_pkey": {Reason: "duplicate_token", Message: "this token is already stored"},
	}
}

// hostLiveKey is the constraint that keeps host names of live nodes unique.
const hostLiveKey = "nodes_host_live_key"
