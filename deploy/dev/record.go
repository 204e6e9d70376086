package dev

import (
	"context"
	"fmt"
	"net"
	"net/url"
)

// kind is where a server comes from.
type kind string

// The kinds, in the order in which they are considered.
const (
	kindExternal kind = "external" // an address in the environment
	kindPath     kind = "path"     // a program of the machine
	kindEmbedded kind = "embedded" // built from deploy/dev
)

// server is what was decided about one of the three engines. The decision is
// kept: the state on disk belongs to the kind of server that made it.
type server struct {
	Kind kind `json:"kind"`
	// Address is where it answers: host:port, a URL for Vault. For an external
	// database it is the host:port of its URL, which may hold a password.
	Address string `json:"address"`
	// Program is the executable of kindPath, a folder of them for Postgres.
	Program string `json:"program,omitempty"`
}

func (s server) owned() bool { return s.Kind != kindExternal }

// record is stack.json: all that later commands need to know. No secret is in it.
type record struct {
	Ports    ports  `json:"ports"`
	From     int    `json:"ports_from,omitempty"` // the --ports-from it was planned with
	Postgres server `json:"postgres"`
	Vault    server `json:"vault"`
	Temporal server `json:"temporal"`
	// TemporalOnPostgres says that an embedded Temporal keeps its state on the
	// stack's Postgres, with one partition for each task queue.
	TemporalOnPostgres bool `json:"temporal_on_postgres,omitempty"`
	// Namespace is Temporal's.
	Namespace string `json:"namespace"`
	// PostgresData is the data folder, outside the layout where Postgres's own
	// user could not reach it there.
	PostgresData string `json:"postgres_data,omitempty"`
	// Whole is set once every part was up: until then nothing is worth keeping
	// a decision for.
	Whole bool `json:"whole"`
	// WebUI is the URL of Temporal's Web UI; "" when it is not known.
	WebUI string `json:"web_ui,omitempty"`
}

func (l layout) load() (record, bool, error) {
	var r record
	found, err := readJSON(l.stackFile(), &r)
	return r, found, err
}

func (l layout) save(r record) error { return writePrivateJSON(l.stackFile(), r) }

// chooser decides about the engines of a stack.
type chooser struct {
	getenv func(string) string
	// look answers the path of a program on PATH, "" when there is none.
	look func(program string) string
}

// plan answers the record of a new stack.
func (c chooser) plan(ctx context.Context, from int) (record, error) {
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
	err := r.place(ctx, from)
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

// place gives the stack its ports, and its own servers their addresses.
func (r *record) place(ctx context.Context, from int) error {
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

// again answers the record for a later `dev up`. Ports may change while nothing
// of the stack runs. As long as it never was whole everything is decided anew,
// but for where its data lies.
func (c chooser) again(ctx context.Context, r record, from int, runs bool) (record, error) {
	moves := from != 0 && from != r.From
	switch {
	case runs && moves:
		return r, fault("gpuaas dev down first, or choose another --dir",
			"the stack in this folder runs with other ports (%s), so --ports-from %d does not fit", r.portsText(), from)
	case !runs && !r.Whole:
		if !moves {
			from = r.From
		}
		next, err := c.plan(ctx, from)
		next.PostgresData = r.PostgresData
		if next.Postgres.owned() {
			next.Postgres.Program = r.Postgres.Program
		}
		return next, err
	}
	if err := c.agree(r); err != nil || !moves {
		return r, err
	}
	err := r.place(ctx, from)
	return r, err
}

// agree checks a later `dev up` against what was decided: a shell that still
// has the variables of `dev env` is fine, one that names another server is not,
// since the stack's state is of the first.
func (c chooser) agree(r record) error {
	for variable, s := range map[string]server{varVaultAddr: r.Vault, varTemporalAddress: r.Temporal} {
		if now := c.getenv(variable); now != "" && now != s.Address {
			return fault("unset "+variable+", or choose another --dir",
				"%s is %s, but this stack was made with %s", variable, now, s.Address)
		}
	}
	now := c.getenv(varDatabaseURL)
	if now == "" {
		return nil
	}
	host, err := databaseHost(now)
	if err == nil && host != r.Postgres.Address {
		return fault("unset "+varDatabaseURL+", or choose another --dir",
			"%s is at %s, but this stack's database is at %s", varDatabaseURL, host, r.Postgres.Address)
	}
	return err
}

func (r record) portsText() string {
	if r.From == 0 {
		return "the standard ones"
	}
	return fmt.Sprintf("from %d", r.From)
}

// databaseHost answers host:port of a database URL. Its error repeats nothing
// of the URL, which may hold a password.
func databaseHost(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", fault("give postgres://user:password@host:port/database", "%s is not a URL of a Postgres database", varDatabaseURL)
	}
	port := u.Port()
	if port == "" {
		port = "5432"
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}
