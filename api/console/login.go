package console

import (
	"crypto/sha256"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Limits of failed logins from one address.
const (
	loginBurst   = 10
	loginEvery   = 6 * time.Second
	maxAddresses = 1024
	maxToken     = 512 // characters of a token
)

// attempts limits failed logins by address.
type attempts struct {
	now func() time.Time
	mu  sync.Mutex
	of  map[string]*rate.Limiter
}

func newAttempts(now func() time.Time) *attempts {
	return &attempts{now: now, of: map[string]*rate.Limiter{}}
}

// limiter returns the limiter of a client's address.
func (a *attempts) limiter(r *http.Request) *rate.Limiter {
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = r.RemoteAddr
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[address] == nil {
		if len(a.of) >= maxAddresses {
			clear(a.of)
		}
		a.of[address] = rate.NewLimiter(rate.Every(loginEvery), loginBurst)
	}
	return a.of[address]
}

// loginPage is the data of the template login.
type loginPage struct{ Next, Refused string }

func (c *Console) showLogin(w http.ResponseWriter, r *http.Request) error {
	return c.loginForm(w, r, "", http.StatusOK)
}

func (c *Console) loginForm(w http.ResponseWriter, r *http.Request, refused string, status int) error {
	req := &request{Request: r, Now: c.cfg.Now(), console: c}
	return c.render(w, req, view{Template: "login", Title: "Log in", Status: status,
		Data: loginPage{Next: localPage(r.FormValue("next")), Refused: refused}})
}

// login begins a session with a token of the admin API. The token is in no response, log line or
// URL.
func (c *Console) login(w http.ResponseWriter, r *http.Request) error {
	token := strings.TrimSpace(r.PostFormValue("token"))
	sum := sha256.Sum256([]byte(token))
	subject, ok := c.cfg.Tokens(sum)
	switch {
	case token == "" || len(token) > maxToken || !ok:
		return c.refuseLogin(w, r)
	case !subject.Role.Allows(trust.RoleViewer):
		return c.loginForm(w, r, "The role "+string(subject.Role)+" cannot use the console.", http.StatusForbidden)
	}
	if err := c.sessions.begin(w, r, sum, subject); err != nil {
		return c.fail(w, r, Subject{}, err)
	}
	edge.Annotate(r.Context(), slog.String("actor", subject.Name))
	http.Redirect(w, r, localPage(r.PostFormValue("next")), http.StatusSeeOther)
	return nil
}

// refuseLogin responds to a token that is not accepted. The limit is for these only: all people behind
// a proxy have its address, and failed attempts of one must not keep out the others.
func (c *Console) refuseLogin(w http.ResponseWriter, r *http.Request) error {
	if !c.attempts.limiter(r).AllowN(c.cfg.Now(), 1) {
		w.Header().Set("Retry-After", "6")
		return c.loginForm(w, r, "There were too many failed attempts. Wait a moment.", http.StatusTooManyRequests)
	}
	return c.loginForm(w, r, "The token is not accepted.", http.StatusUnauthorized)
}

// logout ends the session and its streams.
func (c *Console) logout(w http.ResponseWriter, r *http.Request) error {
	if id, ok := c.sessions.read(r); ok {
		if err := c.sessions.end(r.Context(), id); err != nil && schema.KindOf(err) != schema.KindNotFound {
			return c.fail(w, r, Subject{}, err)
		}
		c.hub.endSession(id)
	}
	c.sessions.set(w, "", -1)
	http.Redirect(w, r, Prefix+"/login", http.StatusSeeOther)
	return nil
}

// localPage returns the page of the console to open next: the given one, or the overview if it is
// not one.
func localPage(next string) string {
	target, _, _ := strings.Cut(next, "?")
	if !strings.HasPrefix(target, Prefix+"/") || strings.ContainsAny(next, "\\\r\n\t") || path.Clean(target) != strings.TrimSuffix(target, "/") {
		return Prefix + "/"
	}
	return next
}
