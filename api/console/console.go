package console

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Prefix is the path below which the console is served.
const Prefix = "/console"

// Via is the interface that the audit trail names for changes made in the console.
const Via = "console"

// Config configures the console. Env, Observe and Now are optional.
type Config struct {
	// API is the admin API, called in process. It takes the subject of a request from
	// SubjectOf, and streams the response to GET /api/v1/admin/events.
	API http.RoundTripper
	// Tokens returns the subject of the admin token with this SHA-256. ok is false if the
	// token is not accepted, or not any longer.
	Tokens   func(sum [32]byte) (s Subject, ok bool)
	Sessions Sessions
	Trail    Trail
	// URL is the console's public address without a path. Requests for other hosts are
	// refused. With the scheme https, the session's cookie is sent only over TLS. Capitals and the
	// port that the scheme implies make no difference.
	URL *url.URL
	// Hosts are further values of the header Host that are accepted.
	Hosts []string
	// Env is the name of the environment, which each page shows.
	Env string
	Log *slog.Logger
	// Observe records each request. Defaults to none.
	Observe edge.Observer
	// Now returns the time. Defaults to time.Now.
	Now func() time.Time
}

// Subject is who uses the console: the subject of an admin token.
type Subject struct {
	Name string
	Role trust.Role
}

type subjectKey struct{}

// SubjectOf returns the subject for which the console makes a request of the admin API. ok is
// false for a request of another client: nothing that a client sends sets it.
func SubjectOf(ctx context.Context) (s Subject, ok bool) {
	s, ok = ctx.Value(subjectKey{}).(Subject)
	return s, ok
}

func withSubject(ctx context.Context, s Subject) context.Context {
	return context.WithValue(ctx, subjectKey{}, s)
}

// Console is the operator console. Run must run while it serves.
type Console struct {
	cfg       Config
	pages     *pages
	assets    *assets
	sessions  *sessions
	attempts  *attempts
	reads     *reads
	regions   *regions
	hub       *hub
	bulk      *bulkRuns
	protected *http.CrossOriginProtection
	hosts     map[string]bool
}

// New returns the console with the configuration. An error is a template that cannot be parsed.
func New(cfg Config) (*Console, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.URL = &url.URL{Scheme: cfg.URL.Scheme, Host: hostOf(cfg.URL.Scheme, cfg.URL.Host)}
	assets, err := readAssets()
	if err != nil {
		return nil, err
	}
	pages, err := parsePages(assets, cfg.Now)
	if err != nil {
		return nil, err
	}
	protected := http.NewCrossOriginProtection()
	if err := protected.AddTrustedOrigin(cfg.URL.Scheme + "://" + cfg.URL.Host); err != nil {
		return nil, err
	}
	c := &Console{cfg: cfg, pages: pages, assets: assets, protected: protected, hosts: map[string]bool{cfg.URL.Host: true},
		sessions: newSessions(cfg), attempts: newAttempts(cfg.Now), hub: newHub(cfg), regions: newRegions(cfg.Now)}
	c.bulk = &bulkRuns{console: c}
	c.reads = newReads(cfg, c.hub.revision)
	for _, host := range cfg.Hosts {
		c.hosts[hostOf(cfg.URL.Scheme, host)] = true
	}
	return c, nil
}

// Run follows the changes of the admin API for the open pages until ctx ends, and then ends
// their streams and the bulk runs.
func (c *Console) Run(ctx context.Context) error {
	defer c.bulk.stop()
	return c.hub.run(ctx)
}

// Handler returns the handler of / and of all paths below Prefix. It checks the host and the
// origin of each request and sets the security headers of each response.
func (c *Console) Handler() http.Handler {
	routed := edge.New(edge.Config{Listener: "console", Log: c.cfg.Log, Observe: c.cfg.Observe, Routes: c.edgeRoutes()})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.secure(w.Header())
		switch {
		case !c.hosts[hostOf(c.cfg.URL.Scheme, r.Host)]:
			reject(w, http.StatusMisdirectedRequest, "this host name is not the console's; GPUAAS_CONSOLE_URL sets it")
		case c.protected.Check(r) != nil:
			reject(w, http.StatusForbidden, "this request comes from another site")
		case r.URL.Path == "/":
			http.Redirect(w, r, Prefix+"/", http.StatusSeeOther)
		case r.URL.Path == Prefix+"/":
			overview := r.Clone(r.Context())
			overview.URL.Path = Prefix // the route has no slash at its end
			routed.ServeHTTP(w, overview)
		default:
			routed.ServeHTTP(w, r)
		}
	})
}

// reject responds to a request that no route gets. The server then reads the rest of its body, which
// may never arrive, so that has a deadline. A request that a route gets must have none after its body:
// the server would take it for a closed connection.
func reject(w http.ResponseWriter, status int, reason string) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(edge.DefaultTimeout)) // only a test's recorder does not support deadlines
	http.Error(w, reason, status)
}

// hostOf returns a host as browsers send it: in lower case, and without the port that the scheme
// implies.
func hostOf(scheme, host string) string {
	port := map[string]string{"http": ":80", "https": ":443"}[scheme]
	return strings.TrimSuffix(strings.ToLower(host), port)
}

// secure sets the headers that keep a page from running or loading anything else, and from
// being shown in a frame.
func (c *Console) secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types gpuaas")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if c.cfg.URL.Scheme == "https" {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}
