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

// Setup creates everything in Vault that the worker and the API need: the node CA
// and the API's CA, the task key, the root key of verifier sets, an AppRole and a
// policy for each of the two processes, and their credential files. Setup is
// idempotent and may run concurrently. It keeps existing CAs and keys, secret IDs
// that work, and the issuer that a rotation assigned to a role; it updates
// policies and role settings. It creates a key only if Vault clearly reports that
// none exists.
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
	steps := []func(context.Context) error{s.nodeCA, s.apiCA, s.signingKeys, s.writePolicies, s.logins}
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
	token, err := readIfExists(a.TokenFile)
	if err != nil || token == "" {
		return nil, schema.NewError(schema.KindInvalidRequest, "no privileged Vault token found in %q", a.TokenFile).
			WithNext("vault login, or configure a file that contains a token")
	}
	conn.api.SetToken(token)
	if a.Log == nil {
		a.Log = slog.Default()
	}
	return &setup{conn: conn, log: a.Log}, nil
}

// do sends a request with a deadline. op describes it in errors. An operator at a
// terminal needs Vault's own message, so do keeps it, without anything that looks
// like a credential.
func (s *setup) do(ctx context.Context, op string, r request) (*api.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	secret, err := s.send(ctx, r)
	response, ok := errors.AsType[*api.ResponseError](err)
	if !ok || response.RawError || response.StatusCode >= 500 {
		return secret, s.interpretError(op, err)
	}
	kind := schema.KindInternal
	if response.StatusCode == http.StatusForbidden {
		kind = schema.KindForbidden
	}
	return nil, schema.Errorf(kind, "%s: Vault at %s returned HTTP %d: %s", op, s.address, response.StatusCode, scrub(response.Errors))
}

// scrub joins Vault's messages and hides tokens and IDs.
func scrub(messages []string) string {
	secret := regexp.MustCompile(`\b(hv[sbr]|s|b|r)\.[A-Za-z0-9_-]{20,}|\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`)
	text := strings.Join(strings.Fields(strings.Join(messages, "; ")), " ")
	return secret.ReplaceAllString(text, "[hidden]")
}

// mount mounts an engine or login method at a free path, and rejects an existing
// one of another type. parent is sys/mounts or sys/auth.
func (s *setup) mount(ctx context.Context, parent, path, kind string, config map[string]any) error {
	there, err := s.mountType(ctx, parent, path)
	if err != nil {
		return err
	}
	if there == "" {
		_, err := s.do(ctx, "mounting "+path, put(parent+"/"+path, map[string]any{"type": kind, "config": config}))
		if err == nil {
			s.log.Info("mounted in Vault", "path", path, "type", kind)
			return nil
		}
		// A concurrent setup may have mounted it.
		if there, _ = s.mountType(ctx, parent, path); there == "" {
			return err
		}
	}
	if there != kind {
		return schema.Errorf(schema.KindInvalidRequest, "Vault at %s has a mount of type %s at %s; gpuaas needs type %s", s.address, there, path, kind)
	}
	if len(config) == 0 {
		return nil
	}
	_, err = s.do(ctx, "configuring "+path, put(parent+"/"+path+"/tune", config))
	return err
}

// mountType returns the type of the mount at a path, or "".
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
