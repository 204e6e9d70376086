package vault

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"strings"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/schema"
)

// Admin prepares Vault and signs verifier sets, with a privileged token.
type Admin struct {
	*conn
	publisher

	log    *slog.Logger
	limits Logins
}

// NewAdmin returns an Admin with the token that the file contains now. It sends no
// request.
func NewAdmin(c AdminConfig) (*Admin, error) {
	if err := checkEnv(c.Env); err != nil {
		return nil, err
	}
	conn, err := dial(c.Address)
	if err != nil {
		return nil, err
	}
	token, err := readIfExists(c.TokenFile)
	if err != nil || token == "" {
		return nil, schema.NewError(schema.KindInvalidRequest, "no privileged Vault token found in %q", c.TokenFile).
			WithNext("vault login, or configure a file that contains a token")
	}
	conn.api.SetToken(token)
	a := &Admin{conn: conn, log: cmp.Or(c.Log, slog.Default()), limits: c.Logins}
	a.publisher = publisher{vault: a, env: c.Env}
	return a, nil
}

// Setup creates everything in Vault that the worker and the API need: the node CA
// and the API's CA, the task key, the root key of verifier sets, the mount for the credentials of
// providers, an AppRole and a policy for each of the two processes and for the rotator, and their
// credential files. Setup is
// idempotent and may run concurrently. It keeps existing CAs and keys, secret IDs
// with at least half of their life left, and the issuer that a rotation assigned to a role; it updates
// policies and role settings. It creates a key only if Vault clearly reports that
// none exists.
//
// names are the DNS names and IP addresses of the API's server certificate. outDir
// receives the files worker-role-id, worker-secret-id, api-role-id, api-secret-id,
// rotator-role-id and rotator-secret-id, mode 0600. With Logins.Kubernetes, outDir may be "":
// then Setup creates no AppRole.
func (a *Admin) Setup(ctx context.Context, names []string, outDir string) error {
	dns, ips, err := splitNames(names)
	if err != nil {
		return err
	}
	s := setup{a, dns, ips, outDir}
	for _, step := range []func(context.Context) error{s.nodeCA, s.apiCA, s.signingKeys, s.providerCredentials, s.writePolicies, s.logins} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// setup is one run of Setup.
type setup struct {
	*Admin
	dns, ips []string
	outDir   string
}

// call implements caller. It describes the operation by the request. An operator
// at a terminal needs Vault's own message, so call keeps it, without anything that
// looks like a credential.
func (a *Admin) call(ctx context.Context, _ string, r request) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	op := cmp.Or(map[string]string{http.MethodGet: "reading ", "LIST": "listing "}[r.method], "writing ") + r.path
	data, err := a.send(ctx, r)
	response, ok := errors.AsType[*api.ResponseError](err)
	if !ok || response.RawError || response.StatusCode >= 500 {
		return data, a.interpretError(op, err)
	}
	kind := schema.KindInternal
	if response.StatusCode == http.StatusForbidden {
		kind = schema.KindForbidden
	}
	return nil, schema.NewError(kind, "%s: Vault at %s returned HTTP %d: %s", op, a.address, response.StatusCode, scrub(response.Errors))
}

//go:embed settings.json
var settings []byte

// write writes an object of Vault: the settings that settings.json has for its
// kind ("" for none), and the given ones.
func (s setup) write(ctx context.Context, path, kind string, given map[string]any) error {
	data, err := withSettings(kind, given)
	if err == nil {
		_, err = s.call(ctx, "", put(path, data))
	}
	return err
}

// withSettings returns the settings that settings.json has for a kind, and the given ones.
func withSettings(kind string, given map[string]any) (map[string]any, error) {
	var fixed map[string]map[string]any
	if err := json.Unmarshal(settings, &fixed); err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "decoding the settings of Vault's objects")
	}
	data := map[string]any{}
	maps.Copy(data, fixed[kind])
	maps.Copy(data, given)
	return data, nil
}

// scrub joins Vault's messages and hides tokens and IDs.
func scrub(messages []string) string {
	secret := regexp.MustCompile(`\b(hv[sbr]|s|b|r)\.[A-Za-z0-9_-]{20,}|\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`)
	text := strings.Join(strings.Fields(strings.Join(messages, "; ")), " ")
	return secret.ReplaceAllString(text, "[hidden]")
}

// mount mounts an engine or login method at a free path, with the settings that settings.json has
// for its type, and rejects an existing one of another type. parent is sys/mounts or sys/auth.
func (s setup) mount(ctx context.Context, parent, path, kind string, config map[string]any) error {
	err := s.write(ctx, parent+"/"+path, kind, map[string]any{"type": kind, "config": config})
	if err == nil {
		s.log.Info("mounted in Vault", "path", path, "type", kind)
		return nil
	}
	mounts, listErr := fetch[map[string]struct {
		Type    string            `json:"type"`
		Options map[string]string `json:"options"`
	}](ctx, s, "", get(parent))
	switch there := mounts[path+"/"]; {
	case listErr != nil || there.Type == "":
		return cmp.Or(listErr, err)
	case there.Type != kind:
		return schema.NewError(schema.KindInvalidRequest, "Vault at %s has a mount of type %s at %s; gpuaas needs type %s", s.address, there.Type, path, kind)
	case kind == "kv" && there.Options["version"] != "2":
		return schema.NewError(schema.KindInvalidRequest, "Vault at %s has version 1 of kv at %s; gpuaas needs version 2", s.address, path).
			WithNext("vault kv enable-versioning " + path)
	case len(config) == 0:
		return nil
	}
	return s.write(ctx, parent+"/"+path+"/tune", "", config)
}
