package dev

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
)

// kind is the origin of a server.
type kind string

// The kinds, in order of preference.
const (
	kindExternal kind = "external" // an address in the environment
	kindPath     kind = "path"     // an installed program
	kindEmbedded kind = "embedded" // built from deploy/dev
)

// server is the choice for one of the three engines. It does not change later,
// because the state on disk belongs to the kind of server that created it.
type server struct {
	Kind kind `json:"kind"`
	// Address is host:port, or a URL for Vault. For an external database it is only
	// the host:port of its URL, which may contain a password.
	Address string `json:"address"`
	// Program is the executable of kindPath; for Postgres, the folder of its programs.
	Program string `json:"program,omitempty"`
}

func (s server) owned() bool { return s.Kind != kindExternal }

// record is stack.json, the state that later commands need. It contains no secret.
type record struct {
	Ports    ports  `json:"ports"`
	From     int    `json:"ports_from,omitempty"` // the --ports-from it was created with
	Postgres server `json:"postgres"`
	Vault    server `json:"vault"`
	Temporal server `json:"temporal"`
	// TemporalOnPostgres keeps the embedded Temporal's state on the stack's
	// Postgres, with one partition per task queue.
	TemporalOnPostgres bool `json:"temporal_on_postgres,omitempty"`
	// Namespace is the Temporal namespace.
	Namespace string `json:"namespace"`
	// PostgresData is the data folder. It is outside the layout if Postgres's user
	// cannot access the layout.
	PostgresData string `json:"postgres_data,omitempty"`
	// ProcessRoles is true if the database has a login for the role of each process.
	ProcessRoles bool `json:"process_roles,omitempty"`
	// Complete is set once every part was up. Until then the choice may change.
	Complete bool `json:"complete"`
	// WebUI is the URL of Temporal's Web UI; "" if unknown.
	WebUI string `json:"web_ui,omitempty"`
}

func (l layout) load() (record, bool, error) {
	var r record
	found, err := statefile.ReadJSON(l.stackFile(), &r)
	return r, found, err
}

func (l layout) save(r record) error { return statefile.WriteJSON(l.stackFile(), r) }

// chooser chooses the engines of a stack.
type chooser struct {
	getenv func(string) string
	// look returns the path of a program on PATH, "" if there is none.
	look func(program string) string
}

// choose returns the record of a new stack.
func (c chooser) choose(ctx context.Context, from int) (record, error) {
	r := record{Namespace: defaultNamespace, WebUI: c.getenv(varWebUI)}
	r.Postgres = server{Kind: kindPath}
	if raw := c.getenv(varDatabaseURL); raw != "" {
		host, err := databaseHost(raw)
		if err != nil {
			return record{}, err
		}
		r.Postgres = server{Kind: kindExternal, Address: host}
	}
	r.Vault, r.Temporal = c.engine(varVaultAddr, "vault"), c.engine(varTemporalAddress, "temporal")
	if ns := c.getenv(varNamespace); ns != "" && !r.Temporal.owned() {
		r.Namespace = ns
	}
	err := r.assignPorts(ctx, from)
	return r, err
}

func (c chooser) engine(variable, program string) server {
	if address := c.getenv(variable); address != "" {
		return server{Kind: kindExternal, Address: address}
	}
	if path := c.look(program); path != "" {
		return server{Kind: kindPath, Program: path}
	}
	return server{Kind: kindEmbedded}
}

// assignPorts sets the stack's ports and the addresses of its own servers.
func (r *record) assignPorts(ctx context.Context, from int) error {
	p, err := standardPorts(ctx), error(nil)
	if from != 0 {
		p, err = portsFrom(from)
	}
	if err != nil {
		return &UsageError{Command: "gpuaas dev up", Message: err.Error()}
	}
	r.Ports, r.From = p, from
	if r.Postgres.owned() {
		r.Postgres.Address = loopback(p.Postgres)
	}
	if r.Vault.owned() {
		r.Vault.Address = "http://" + loopback(p.Vault)
	}
	if r.Temporal.owned() {
		r.Temporal.Address, r.WebUI = loopback(p.Temporal), "http://"+loopback(p.TemporalUI)
	}
	return nil
}

// update returns the record for a later `dev up`. Ports may change while nothing
// runs. If the stack was never complete, everything except the location of the
// data is chosen again.
func (c chooser) update(ctx context.Context, r record, from int, runs bool) (record, error) {
	portsChange := from != 0 && from != r.From
	switch {
	case runs && portsChange:
		return r, stackError("gpuaas dev down first, or choose another --dir",
			"the stack in this folder is running with other ports (%s), so --ports-from %d cannot apply", r.portsText(), from)
	case !runs && !r.Complete:
		if !portsChange {
			from = r.From
		}
		next, err := c.choose(ctx, from)
		next.PostgresData, next.ProcessRoles = r.PostgresData, r.ProcessRoles
		if next.Postgres.owned() {
			next.Postgres.Program = r.Postgres.Program
		}
		return next, err
	}
	if err := c.checkEnvironment(r); err != nil || !portsChange {
		return r, err
	}
	err := r.assignPorts(ctx, from)
	return r, err
}

// checkEnvironment rejects variables that name other servers than the record: the
// stack's state belongs to the recorded ones. The variables of `dev env` match.
func (c chooser) checkEnvironment(r record) error {
	for variable, s := range map[string]server{varVaultAddr: r.Vault, varTemporalAddress: r.Temporal} {
		if now := c.getenv(variable); now != "" && now != s.Address {
			return stackError("unset "+variable+", or choose another --dir",
				"%s is %s, but this stack was created with %s", variable, now, s.Address)
		}
	}
	now := c.getenv(varDatabaseURL)
	if now == "" {
		return nil
	}
	host, err := databaseHost(now)
	if err == nil && host != r.Postgres.Address {
		return stackError("unset "+varDatabaseURL+", or choose another --dir",
			"%s points to %s, but this stack's database is at %s", varDatabaseURL, host, r.Postgres.Address)
	}
	return err
}

func (r record) portsText() string {
	if r.From == 0 {
		return "the default ones"
	}
	return fmt.Sprintf("from %d", r.From)
}

// databaseHost returns host:port of a database URL. Its error does not contain the
// URL, which may include a password.
func databaseHost(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", stackError("use postgres://user:password@host:port/database", "%s is not a URL of a Postgres database", varDatabaseURL)
	}
	first, _, _ := strings.Cut(u.Host, ",") // a URL may name standbys, too
	server := url.URL{Host: first}
	return net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), "5432")), nil
}
