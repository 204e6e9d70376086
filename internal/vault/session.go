package vault

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
)

// session is a connection with a login. keepAlive renews its token and
// replaces the token before it expires; a call whose token Vault no longer
// accepts logs in again at once.
type session struct {
	*conn
	conf Config

	login    sync.Mutex                // held during a login, so that concurrent callers log in once
	watchers chan *api.LifetimeWatcher // of the newest token, for keepAlive
	// absent is why the session has no token yet; nil after the first login.
	absent atomic.Pointer[schema.Error]
}

// opText describes the operations in errors.
//
//nolint:gochecknoglobals // read-only table
var opText = map[string]string{
	"sign":                "signing a task",
	"issue":               "issuing a node certificate",
	"server_certificate":  "issuing the API's server certificate",
	"server_names":        "reading the API's names",
	"issuers":             "reading the CA certificates",
	"sign_lease_key":      "signing a lease key",
	"task_key":            "reading the task key",
	"set_root":            "reading the root key of verifier sets",
	"checkpoint_key":      "reading the key of audit checkpoints",
	"sign_checkpoint":     "signing an audit checkpoint",
	"own_token":           "reading the Vault token",
	"provider_credential": "reading the credential of a provider",
	"secret_id":           "reading the end of the Vault secret ID",
	"rotation_key":        "reading a key to rotate",
	"rotate_key":          "creating a version of a key",
	"finish_key":          "ending the use of old versions of a key",
}

// call sends a request with a deadline and observes it under the operation's
// name. Before the first login of a resumed client it returns why there is none. If Vault no longer accepts the token, call logs in and retries once.
func (s *session) call(ctx context.Context, op string, r request) (json.RawMessage, error) {
	if absent := s.absent.Load(); absent != nil {
		return nil, absent
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	start := time.Now()
	token := s.api.Token()
	data, err := s.send(ctx, r)
	if isDenied(err) {
		var again bool
		if again, err = s.loginAgain(ctx, token, err); again {
			data, err = s.send(ctx, r)
		}
	}
	err = s.interpretError(cmp.Or(opText[op], op), err)
	s.conf.Observe(op, time.Since(start), err)
	return data, err
}

// loginAgain replaces the token after Vault denied a call with it. If the token
// is still valid, the policy denied the call and nothing changes. loginAgain
// reports whether to retry the call, or the error to return instead.
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
	s.conf.Log.Info("logged in to Vault again", "address", s.address)
	return true, nil
}

// replaceToken logs in unless a call has already replaced the token.
func (s *session) replaceToken(ctx context.Context, token string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	s.login.Lock()
	defer s.login.Unlock()
	if s.api.Token() != token {
		return nil
	}
	return s.loginLocked(ctx)
}

func (s *session) loginLocked(ctx context.Context) error {
	start := time.Now()
	secret, err := s.exchange(ctx)
	s.conf.Observe("login", time.Since(start), err)
	if err != nil {
		return err
	}
	watcher, err := s.watcher(secret)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "preparing the renewal of the Vault token")
	}
	s.api.SetToken(secret.Auth.ClientToken)
	s.absent.Store(nil)
	select { // keepAlive needs only the newest
	case <-s.watchers:
	default:
	}
	s.watchers <- watcher
	return nil
}

// watcher prepares the renewal of a token. The watcher repeats a failed renewal and
// ends when the token is about to expire.
func (s *session) watcher(login *api.Secret) (*api.LifetimeWatcher, error) {
	client, err := s.api.Clone()
	if err != nil {
		return nil, err
	}
	var start time.Time // a watcher sends one request at a time
	client = client.WithRequestCallbacks(func(*api.Request) { start = time.Now() }).
		WithResponseCallbacks(func(r *api.Response) {
			err := s.interpretError("renewing the token", r.Error())
			s.conf.Observe("renew", time.Since(start), err)
			if err != nil {
				s.conf.Log.Warn("cannot renew the Vault token", "address", s.address, "err", err)
			}
		})
	return client.NewLifetimeWatcher(&api.LifetimeWatcherInput{Secret: login})
}

// keepAlive renews the newest token until ctx ends. When Vault stops extending
// the token, or a renewal fails until the token is about to expire, keepAlive logs
// in again. The session must have logged in.
func (s *session) keepAlive(ctx context.Context) {
	watcher := <-s.watchers
	for {
		token := s.api.Token()
		go watcher.Start() // ends after Stop; a call in progress may delay it by the timeout
		var next *api.LifetimeWatcher
		select {
		case <-ctx.Done():
		case next = <-s.watchers: // a call has logged in again
		case err := <-watcher.DoneCh():
			s.conf.Log.Info("token cannot be extended; logging in to Vault again", "address", s.address, "err", err)
			failed := func(err error, wait time.Duration) {
				s.conf.Log.Warn("cannot replace the Vault token", "address", s.address, "retry_in", wait, "err", err)
			}
			if daemon.Retry(ctx, func() error { return s.replaceToken(ctx, token) }, failed) == nil {
				next = <-s.watchers
			}
		}
		watcher.Stop()
		if next == nil {
			return
		}
		watcher = next
	}
}
