package vault

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strings"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/schema"
)

// Setup makes in Vault all that the worker and the API need: the node CA and the
// API's own CA, the task key, the root key of verifier sets, one AppRole and policy for each of the two, and
// the files they log in with. It is idempotent and may run twice at once. What
// is there is kept: CAs and keys always, a secret id as long as it works, the
// issuer a role was moved to; policies and role settings are brought up to date.
// A key is made only where Vault says clearly that there is none.
func Setup(ctx context.Context, a AdminConfig, c SetupConfig) error {
	if err := checkEnv(c.Env); err != nil {
		return err
	}
	dns, ips, err := splitNames(c.NodeAPINames)
	if err != nil {
		return err
	}
	s, err := newSetup(a)
	if err != nil {
		return err
	}
	s.env, s.dns, s.ips, s.outDir = c.Env, dns, ips, c.OutDir
	steps := []func(context.Context) error{s.nodeCA, s.apiCA, s.signingKeys, s.policies, s.logins}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// setup is one run of Setup.
type setup struct {
	*conn
	log      *slog.Logger
	env      string
	dns, ips []string
	outDir   string
}

func newSetup(a AdminConfig) (*setup, error) {
	conn, err := dial(a.Address, a.Timeout)
	if err != nil {
		return nil, err
	}
	token, err := readIfThere(a.TokenFile)
	if err != nil || token == "" {
		return nil, schema.NewError(schema.KindInvalidRequest, "there is no privileged Vault token in %q", a.TokenFile).
			WithNext("vault login, or name a file that holds a token")
	}
	conn.api.SetToken(token)
	if a.Log == nil {
		a.Log = slog.Default()
	}
	return &setup{conn: conn, log: a.Log}, nil
}

// do makes one call with a deadline and says what it was for when it fails. An
// operator at a terminal needs Vault's own words, so they are kept here, without
// anything that looks like a credential.
func (s *setup) do(ctx context.Context, doing string, r request) (*api.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	secret, err := s.send(ctx, r)
	answer, ok := errors.AsType[*api.ResponseError](err)
	if !ok || answer.RawError || answer.StatusCode >= 500 {
		return secret, s.interpretError(doing, err)
	}
	kind := schema.KindInternal
	if answer.StatusCode == http.StatusForbidden {
		kind = schema.KindForbidden
	}
	return nil, schema.Errorf(kind, "%s: Vault at %s answered HTTP %d: %s", doing, s.address, answer.StatusCode, scrub(answer.Errors))
}

// scrub joins Vault's messages without tokens and ids.
func scrub(messages []string) string {
	secret := regexp.MustCompile(`\b(hv[sbr]|s|b|r)\.[A-Za-z0-9_-]{20,}|\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`)
	text := strings.Join(strings.Fields(strings.Join(messages, "; ")), " ")
	return secret.ReplaceAllString(text, "[hidden]")
}

// mount makes an engine or login method where there is none, and refuses one of
// another type. parent is sys/mounts or sys/auth.
func (s *setup) mount(ctx context.Context, parent, path, kind string, config map[string]any) error {
	there, err := s.mountType(ctx, parent, path)
	if err != nil {
		return err
	}
	if there == "" {
		_, err := s.do(ctx, "mounting "+path, put(parent+"/"+path, map[string]any{"type": kind, "config": config}))
		if err == nil {
			s.log.Info("mounted in vault", "path", path, "type", kind)
			return nil
		}
		// Somebody else may have made it since.
		if there, _ = s.mountType(ctx, parent, path); there == "" {
			return err
		}
	}
	if there != kind {
		return schema.Errorf(schema.KindInvalidRequest, "Vault at %s has something of type %s at %s; gpuaas needs %s there", s.address, there, path, kind)
	}
	if len(config) == 0 {
		return nil
	}
	_, err = s.do(ctx, "configuring "+path, put(parent+"/"+path+"/tune", config))
	return err
}

// mountType returns the type of what is mounted at a path, "" for nothing.
func (s *setup) mountType(ctx context.Context, parent, path string) (string, error) {
	secret, err := s.do(ctx, "listing "+parent, get(parent))
	if err != nil {
		return "", err
	}
	var mounts map[string]struct {
		Type string `json:"type"`
	}
	if err := decode(secret, &mounts); err != nil {
		return "", err
	}
	return mounts[path+"/"].Type, nil
}
