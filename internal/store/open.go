package store

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
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
	// CallTimeout bounds every call, however long the caller would wait.
	// Defaults to 15 s.
	CallTimeout time.Duration
}

const (
	defaultMaxConns    = 10
	defaultCallTimeout = 15 * time.Second
	connectTimeout     = 5 * time.Second
)

// Store is the database. It implements activities.Records, activities.Tasks,
// nodeapi.Store and adminapi.Store; Ledger and Outbox give the other two ports.
// It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	q        *sqlc.Queries
	address  string
	creating []string
	timeout  time.Duration
	beats    *gathering[beat]
	asked    *gathering[claimant]
	// relay is what the relay of this process reads, nil while there is none.
	relay atomic.Pointer[Outbox]
}

// Open connects to the database and answers only once it was reached. The
// caller closes the store. A malformed URL is KindInvalidRequest, a database
// out of reach KindServiceUnavailable.
func Open(ctx context.Context, c Config) (*Store, error) {
	pc, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, errMalformedURL()
	}
	prepare(pc.ConnConfig)
	pc.MaxConns = defaultMaxConns
	if c.MaxConns > 0 {
		pc.MaxConns = c.MaxConns
	}
	pc.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		useUTC(conn)
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, interpretError(err, address(pc.ConnConfig), "opening the database")
	}
	s := &Store{pool: pool, q: sqlc.New(pool), address: address(pc.ConnConfig),
		creating: c.CreatingProviders, timeout: c.CallTimeout, beats: newBeats(), asked: newAsked()}
	if s.timeout <= 0 {
		s.timeout = defaultCallTimeout
	}
	if err := s.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// Close waits for the calls under way and gives every connection back.
func (s *Store) Close() { s.pool.Close() }

// Ping answers nil when the database can be reached.
func (s *Store) Ping(ctx context.Context) error {
	return s.read(ctx, "reaching the database", s.pool.Ping)
}

// prepare sets what every connection needs unless the URL says otherwise: a
// process that is stopped in the middle of a transaction must not hold a node's
// row for longer than the others wait.
func prepare(c *pgx.ConnConfig) {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	for name, value := range map[string]string{
		"application_name":                    "gpuaas",
		"lock_timeout":                        "5s",
		"statement_timeout":                   "15s",
		"idle_in_transaction_session_timeout": "10s",
	} {
		if _, set := c.RuntimeParams[name]; !set {
			c.RuntimeParams[name] = value
		}
	}
}

// useUTC makes timestamps come back in UTC whatever the machine's zone is.
func useUTC(conn *pgx.Conn) {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
}

// address is the database's place as errors name it: never a credential.
func address(c *pgx.ConnConfig) string {
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))) + "/" + c.Database
}

func errMalformedURL() error {
	return schema.NewError(schema.KindInvalidRequest,
		"the database URL is malformed (want postgres://user@host:port/database)").WithReason("database_url")
}
