package store

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
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
	// Name is the application name of the connections. Defaults to gpuaas, unless the URL
	// has one.
	Name string
	// UnauthenticatedConns is the size of a pool of its own for the requests that no
	// certificate authenticates, so that they cannot use the connections that others need.
	// Default: no such pool, the requests share MaxConns.
	UnauthenticatedConns int32
	// CallTimeout bounds every call in addition to the caller's context.
	// Defaults to 15 s.
	CallTimeout time.Duration
	// Relaying is the listener of a process that relays the outbox: its relay is
	// woken without a notification, and the store and it use the same primary. Defaults to
	// none.
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
	Machines   *Machines
	Restore    *Restore
	// Checkpoints stores the checkpoints of the audit trail.
	Checkpoints *Checkpoints
	// Retention deletes old records.
	Retention *Retention
	// Signals stores the signals and conditions of nodes.
	Signals *Signals
	// Templates stores templates and how nodes differ from them.
	Templates *Templates
	// Surplus stores the surplus machines of providers.
	Surplus *SurplusMachines
	// Insights reads what needs attention and why.
	Insights *Insights
	// Repairs stores what repairs do to nodes.
	Repairs *Repairs
	// Recovery stores the policy, the decisions and the budgets of health recovery.
	Recovery *Recovery
	// Console stores the sessions of the console.
	Console *Console
	db      *db
	pools   map[string]*postgres.DB // by purpose
}

// Operations stores operations and the resources they create. It implements
// activities.Records and activities.Ledger.
type Operations struct{ db *db }

// Tasks stores node tasks. It implements activities.Tasks, activities.Reclaimer,
// nodeapi.Tasks and adminapi.Tasks.
type Tasks struct{ db *db }

// Identities stores tokens, certificates, keys and verifier sets. It implements
// nodeapi.Identities and adminapi.EnrollmentTokens.
type Identities struct {
	db *db
	// unauthenticated runs what a request without a verified certificate causes.
	unauthenticated *db
}

// Inventory stores heartbeats and serves counts. It implements metrics.Counts and
// nodeapi.Heartbeats.
type Inventory struct {
	db *db
	// returns batches the moves of nodes that send heartbeats again.
	returns *batcher
}

// Admin registers nodes, keeps the SKU catalog and serves the lists of the admin API.
// It implements adminapi.Nodes, adminapi.SKUs, adminapi.Operations and adminapi.Trail.
type Admin struct{ db *db }

// Insights reads what needs attention, why, and what past operations took. It implements
// adminapi.Insights and activities.Causes.
type Insights struct{ db *db }

// Machines reads the providers of the workers and the instances of nodes. It implements
// adminapi.Machines.
type Machines struct{ db *db }

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
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	pools, err := openPools(ctx, c)
	if err != nil {
		return nil, err
	}
	shared := pools[PoolShared]
	d := &db{DB: shared, q: sqlc.New(shared.Pool()), notifier: postgres.NewNotifier(shared, notifyPause, c.Log), relaying: c.Relaying}
	unauthenticated := *d
	if p := pools[PoolUnauthenticated]; p != nil {
		unauthenticated.DB, unauthenticated.q = p, sqlc.New(p.Pool())
	}
	s := &Store{
		Operations:  &Operations{db: d},
		Tasks:       &Tasks{db: d},
		Identities:  &Identities{db: d, unauthenticated: &unauthenticated},
		Rotations:   &Rotations{db: d},
		Inventory:   &Inventory{db: d, returns: &batcher{}},
		Admin:       &Admin{db: d},
		Machines:    &Machines{db: d},
		Insights:    &Insights{db: d},
		Restore:     &Restore{db: d, operations: &Operations{db: d}},
		db:          d,
		pools:       pools,
		Checkpoints: &Checkpoints{db: d},
		Signals:     &Signals{db: d},
		Templates:   &Templates{db: d},
		Surplus:     &SurplusMachines{db: d},
		Repairs:     &Repairs{d},
		Console:     &Console{db: d},
		Recovery:    &Recovery{db: d},
	}
	s.Retention = &Retention{db: d, events: s.Admin}
	s.warnOfPrivileges(ctx, c.Log)
	return s, nil
}

// The pools of a store by purpose.
const (
	PoolShared          = "shared"
	PoolUnauthenticated = "unauthenticated"
)

// openPools opens the pools that the configuration sizes.
func openPools(ctx context.Context, c Config) (map[string]*postgres.DB, error) {
	failover := new(postgres.Failover)
	if c.Relaying != nil {
		failover = c.Relaying.Failover
	}
	pools := map[string]*postgres.DB{}
	for _, p := range []struct {
		name, application string
		conns             int32
	}{{PoolShared, c.Name, c.MaxConns}, {PoolUnauthenticated, "gpuaas-unauthenticated", c.UnauthenticatedConns}} {
		if p.conns == 0 && p.name != PoolShared {
			continue
		}
		pg, err := postgres.Open(ctx, postgres.Config{URL: c.URL, Name: p.application, MaxConns: p.conns, CallTimeout: c.CallTimeout,
			Failover: failover, Refusals: refusals()})
		if err != nil {
			closePools(pools)
			return nil, err
		}
		pools[p.name] = pg
	}
	return pools, nil
}

func closePools(pools map[string]*postgres.DB) {
	for _, p := range pools {
		p.Close()
	}
}

// Close sends pending notifications, waits for open calls and closes every
// connection.
func (s *Store) Close() {
	s.db.notifier.Close()
	closePools(s.pools)
}

// warnOfPrivileges logs a warning if the database's role may change the audit trail: an
// intruder in the process could then do so, too.
func (s *Store) warnOfPrivileges(ctx context.Context, log *slog.Logger) {
	var role string
	err := s.db.Call(ctx, "reading the role", func(ctx context.Context) error {
		return s.db.Pool().QueryRow(ctx, "SELECT current_user WHERE has_table_privilege(to_regclass('public.audit_events'), 'UPDATE')").Scan(&role)
	})
	if err == nil {
		log.Warn("the database role may change the audit trail; use a member of "+RoleWorker+", "+RoleAPIAdmin+" or "+RoleAPINode, "role", role)
	}
}

// Pools returns the connection pools by purpose, for their metrics.
func (s *Store) Pools() map[string]*postgres.DB { return s.pools }

// Connections returns the largest number of connections to the database, without those of
// the pools for single purposes.
func (s *Store) Connections() int { return s.db.Size() }

// Ping returns nil if the database can be reached.
func (s *Store) Ping(ctx context.Context) error { return s.db.Ping(ctx) }

// Now returns the time of the database's clock.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.db.Call(ctx, "reading the database's clock", func(ctx context.Context) error {
		return s.db.Pool().QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	})
	return now, err
}

// The roles of the processes in the database. Their privileges are in
// schema/migrations/grants.
const (
	RoleWorker   = "gpuaas_worker"
	RoleAPIAdmin = "gpuaas_api_admin"
	RoleAPINode  = "gpuaas_api_node"
)

// Migrate updates the database's schema, creates the roles of the processes that the
// server lacks and sets their privileges. It is idempotent and safe to run concurrently.
// url is that of the owner of the tables.
func Migrate(ctx context.Context, url string) error {
	return MigrateReporting(ctx, url, nil)
}

// MigrateReporting is Migrate; it calls blocked, from another goroutine, with the sessions
// whose locks it waits for.
func MigrateReporting(ctx context.Context, url string, blocked func(postgres.Blockers)) error {
	if err := postgres.Migrate(ctx, postgres.Migration{URL: url, Files: migrations.Files, Blocked: blocked}); err != nil {
		return err
	}
	err := postgres.Run(ctx, url, migrations.Grants)
	if postgres.Denied(err) {
		return schema.AsError(err).WithNext("as a superuser: CREATE ROLE " + RoleWorker + "; CREATE ROLE " + RoleAPIAdmin +
			"; CREATE ROLE " + RoleAPINode + "; then: gpuaas admin setup")
	}
	return err
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
