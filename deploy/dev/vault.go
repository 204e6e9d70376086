package dev

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
)

// vaultBinary is the embedded build.
const vaultBinary = "gpuaas-dev-vault"

// vaultKeys is the file that unseals the Vault. The embedded build writes it;
// for an installed vault this package does.
type vaultKeys struct {
	UnsealKey []byte `json:"unseal_key"`
	RootToken string `json:"root_token"`
}

// vaultEngine describes the Vault part.
type vaultEngine struct{ *stack }

func (s vaultEngine) part() part {
	v := vaultClient{address: s.record.Vault.Address}
	p := part{name: partVault, address: v.address, healthy: v.health}
	switch s.record.Vault.Kind {
	case kindExternal:
		return p
	case kindPath:
		p.prepare = s.prepare
	case kindEmbedded:
		p.prepare = func(context.Context) (command, error) {
			return s.programs.command(vaultBinary, "--address", loopback(s.record.Ports.Vault),
				"--data", s.layout.vaultDir(), "--keys", s.layout.vaultKeys())
		}
	}
	p.uses = []portUse{{"API", s.record.Ports.Vault}}
	p.ready = s.unseal
	return p
}

// prepare configures an installed vault.
func (s vaultEngine) prepare(context.Context) (command, error) {
	data := s.layout.vaultDir()
	if err := os.MkdirAll(data, privateDir); err != nil {
		return command{}, err
	}
	config, err := json.MarshalIndent(map[string]any{
		"storage":       map[string]any{"file": map[string]any{"path": filepath.Join(data, "file")}},
		"listener":      map[string]any{"tcp": map[string]any{"address": loopback(s.record.Ports.Vault), "tls_disable": true}},
		"api_addr":      s.record.Vault.Address,
		"disable_mlock": true,
		"log_level":     "warn",
	}, "", "  ")
	if err != nil {
		return command{}, err
	}
	file := filepath.Join(data, "server.json")
	return command{
		path: s.record.Vault.Program, args: []string{"server", "-config", file}, env: inherited(os.Environ(), false),
	}, statefile.Write(file, config)
}

// unseal is the ready probe of a Vault that the stack owns. Each call makes the next
// step: it initializes the Vault, or unseals it.
func (s vaultEngine) unseal(ctx context.Context) error {
	v := vaultClient{address: s.record.Vault.Address}
	err := v.health(ctx)
	switch {
	case errors.Is(err, errUninitialized):
		return errors.Join(err, v.initialize(ctx, s.layout.vaultKeys()))
	case errors.Is(err, errSealed):
		fmt.Fprintln(s.messages, "unsealing  vault")
		return errors.Join(err, v.unseal(ctx, s.layout.vaultKeys()))
	}
	return err
}

// vaultClient makes the calls that check, initialize and unseal a Vault.
type vaultClient struct{ address string }

// The states of a Vault that runs and is not usable.
var (
	errUninitialized = errors.New("it is not initialized")
	errSealed        = errors.New("it is sealed")
)

// health is a probe. It changes nothing.
func (v vaultClient) health(ctx context.Context) error {
	err := get(v.address + "/v1/sys/health")(ctx)
	if status, ok := errors.AsType[*statusError](err); ok {
		switch status.code {
		case http.StatusNotImplemented:
			return errUninitialized
		case http.StatusServiceUnavailable:
			return errSealed
		}
	}
	return err
}

func (v vaultClient) unseal(ctx context.Context, keyFile string) error {
	var keys vaultKeys
	found, err := statefile.ReadJSON(keyFile, &keys)
	if err != nil || !found {
		return errors.Join(err, fmt.Errorf("there is no unseal key in %s; gpuaas dev down --wipe starts over", keyFile))
	}
	return v.call(ctx, "unseal", map[string]any{"key": base64.StdEncoding.EncodeToString(keys.UnsealKey)}, nil)
}

func (v vaultClient) initialize(ctx context.Context, keyFile string) error {
	var made struct {
		Keys  [][]byte `json:"keys_base64"`
		Token string   `json:"root_token"`
	}
	one := map[string]any{"secret_shares": 1, "secret_threshold": 1}
	if err := v.call(ctx, "init", one, &made); err != nil {
		return err
	}
	if len(made.Keys) != 1 {
		return fmt.Errorf("vault returned %d unseal keys", len(made.Keys))
	}
	return statefile.WriteJSON(keyFile, vaultKeys{UnsealKey: made.Keys[0], RootToken: made.Token})
}

func (v vaultClient) call(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	raw, err := fetch(ctx, http.MethodPut, v.address+"/v1/sys/"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("vault %s: %w", path, err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// ensureToken writes a privileged token for `gpuaas admin setup` to a file: the
// root token of our Vault, or for an external Vault the token from the
// environment or the usual file.
func (s vaultEngine) ensureToken() error {
	if !s.record.Vault.owned() {
		return s.copyToken()
	}
	var keys vaultKeys
	found, err := statefile.ReadJSON(s.layout.vaultKeys(), &keys)
	if err != nil || !found {
		return errors.Join(err, stackError("gpuaas dev down --wipe starts over", "the key file %s does not exist", s.layout.vaultKeys()))
	}
	return statefile.Write(s.layout.vaultToken(), []byte(keys.RootToken+"\n"))
}

func (s vaultEngine) copyToken() error {
	token, given := s.getenv(varVaultToken), s.getenv(varVaultTokenFile)
	if given == s.layout.vaultToken() { // from dev env: the copy of an earlier token
		given = ""
	}
	for _, file := range []string{given, filepath.Join(s.getenv("HOME"), ".vault-token"), s.layout.vaultToken()} {
		if token != "" {
			break
		}
		if raw, err := os.ReadFile(file); err == nil {
			token = strings.TrimSpace(string(raw))
		}
	}
	if token == "" {
		return stackError("set "+varVaultTokenFile+" to a file that contains one",
			"setting up the Vault at %s needs a privileged token", s.record.Vault.Address)
	}
	return statefile.Write(s.layout.vaultToken(), []byte(token+"\n"))
}
