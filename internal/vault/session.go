package vault

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/schema"
)

// Renewal of the token: at two thirds of its life, and again after a failure
// with these waits. A lapsed token heals at the next call in any case.
const (
	renewRetryMin = time.Second
	renewRetryMax = time.Minute
)

// session is a connection that is logged in, stays so, and logs in again when
// Vault no longer knows its token.
type session struct {
	*conn
	roleIDFile   string
	secretIDFile string
	log          *slog.Logger
	observe      func(op string, d time.Duration, err error)

	login sync.Mutex         // held while logging in, so that many callers log in once
	fresh chan time.Duration // a new token's life, for the renewing goroutine
}

// call makes one call with a deadline and a name for the metrics. A token that
// Vault no longer knows is replaced once.
func (s *session) call(ctx context.Context, op string, r request) (*api.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	start := time.Now()
	token := s.api.Token()
	secret, err := s.send(ctx, r)
	if isDenied(err) {
		var again bool
		if again, err = s.loginAgain(ctx, token, err); again {
			secret, err = s.send(ctx, r)
		}
	}
	err = s.interpretError(doing(op), err)
	s.observe(op, time.Since(start), err)
	return secret, err
}

// doing says in words what a request is for.
func doing(op string) string {
	words := map[string]string{
		"sign":               "signing a task",
		"issue":              "issuing a node certificate",
		"server_certificate": "issuing the API's server certificate",
		"server_names":       "reading the API's names",
		"issuers":            "reading the CA certificates",
		"sign_lease_key":     "signing a lease key",
		"task_key":           "reading the task key",
		"set_root":           "reading the root key of verifier sets",
		"renew":              "renewing the token",
	}
	return cmp.Or(words[op], op)
}

// loginAgain replaces a token after Vault denied a call with it, unless the
// token is alive and the denial is the policy's. It reports whether the call
// should be made once more, or else the error to report.
func (s *session) loginAgain(ctx context.Context, denied string, cause error) (bool, error) {
	s.login.Lock()
	defer s.login.Unlock()
	if s.api.Token() != denied {
		return true, nil // another call has already logged in
	}
	if _, err := s.send(ctx, get("auth/token/lookup-self")); !isDenied(err) {
		return false, cause
	}
	if err := s.loginLocked(ctx); err != nil {
		return false, err
	}
	s.log.Info("logged in to vault again", "address", s.address)
	return true, nil
}

// start logs in for the first time.
func (s *session) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	s.login.Lock()
	defer s.login.Unlock()
	return s.loginLocked(ctx)
}

func (s *session) loginLocked(ctx context.Context) error {
	start := time.Now()
	ttl, err := s.appRoleLogin(ctx)
	s.observe("login", time.Since(start), err)
	if err != nil {
		return err
	}
	select { // the goroutine needs only the newest
	case <-s.fresh:
	default:
	}
	s.fresh <- ttl
	return nil
}

// appRoleLogin trades the credentials in the two files for a token.
func (s *session) appRoleLogin(ctx context.Context) (time.Duration, error) {
	roleID, err := readSecret(s.roleIDFile)
	if err != nil {
		return 0, err
	}
	secretID, err := readSecret(s.secretIDFile)
	if err != nil {
		return 0, err
	}
	secret, err := s.send(ctx, put("auth/"+loginMount+"/login", map[string]any{"role_id": roleID, "secret_id": secretID}))
	if e, ok := errors.AsType[*api.ResponseError](err); ok && (e.StatusCode == http.StatusBadRequest || e.StatusCode == http.StatusForbidden) {
		return 0, s.unavailable(ReasonLogin, "gpuaas admin setup",
			"logging in: Vault at %s refused the credentials in %s and %s", s.address, s.roleIDFile, s.secretIDFile)
	}
	if err != nil {
		return 0, s.interpretError("logging in", err)
	}
	if secret == nil || secret.Auth == nil || secret.Auth.ClientToken == "" {
		return 0, schema.Errorf(schema.KindInternal, "logging in: Vault at %s answered without a token", s.address)
	}
	s.api.SetToken(secret.Auth.ClientToken)
	return time.Duration(secret.Auth.LeaseDuration) * time.Second, nil
}

// keepAlive renews the token until ctx ends.
func (s *session) keepAlive(ctx context.Context) {
	var full time.Duration // what Vault granted at login
	retry := renewRetryMin
	timer := time.NewTimer(0)
	timer.Stop() // nothing to renew before the first token
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case full = <-s.fresh:
			retry = renewRetryMin
			timer.Reset(renewAfter(full))
			continue
		case <-timer.C:
		}
		ttl, err := s.renew(ctx, full)
		if err != nil {
			s.log.Warn("vault token not renewed", "address", s.address, "retry_in", retry, "err", err)
			timer.Reset(retry)
			retry = min(2*retry, renewRetryMax)
			continue
		}
		retry = renewRetryMin
		timer.Reset(renewAfter(ttl))
	}
}

func renewAfter(ttl time.Duration) time.Duration { return max(ttl*2/3, renewRetryMin) }

// renew extends the token. One that Vault does not extend, or by less and less
// because its maximal life ends, is replaced ahead of its end.
func (s *session) renew(ctx context.Context, full time.Duration) (time.Duration, error) {
	token := s.api.Token()
	secret, err := s.call(ctx, "renew", put("auth/token/renew-self", nil))
	if err == nil && secret != nil && secret.Auth != nil {
		ttl := time.Duration(secret.Auth.LeaseDuration) * time.Second
		if ttl >= full/2 {
			return ttl, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	s.login.Lock()
	defer s.login.Unlock()
	if s.api.Token() != token {
		return full, nil // the call has already logged in again
	}
	return full, s.loginLocked(ctx)
}

// revoke gives the token back, as far as Vault is there to take it.
func (s *session) revoke(timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if _, err := s.send(ctx, put("auth/token/revoke-self", nil)); err != nil {
		s.log.Debug("vault token not given back; it ends by itself", "address", s.address)
	}
	s.api.ClearToken()
}

// readSecret reads a credential file. The error names the file, never its
// content.
func readSecret(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", schema.NewError(schema.KindServiceUnavailable, "reading the Vault credentials: %v", err).
			WithReason(ReasonLogin).WithNext("gpuaas admin setup")
	}
	text := strings.TrimSpace(string(raw))
	if text == "" {
		return "", schema.NewError(schema.KindServiceUnavailable, "reading the Vault credentials: %s is empty", file).
			WithReason(ReasonLogin).WithNext("gpuaas admin setup")
	}
	return text, nil
}
