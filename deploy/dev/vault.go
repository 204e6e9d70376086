package dev

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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
	p := part{
		name: partVault, address: s.record.Vault.Address,
		healthy: get(s.record.Vault.Address + "/v1/sys/health"),
	}
	switch s.record.Vault.Kind {
	case kindExternal:
		return p
	case kindPath:
		p.prepare = s.prepare
		p.healthy = s.unsealed(p.healthy)
	case kindEmbedded:
		p.prepare = func(context.Context) (command, error) {
			return s.programs.command(vaultBinary, "--address", loopback(s.record.Ports.Vault),
				"--data", s.layout.vaultDir(), "--keys", s.layout.vaultKeys())
		}
	}
	p.uses = []portUse{{"API", s.record.Ports.Vault}}
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
	}, writePrivate(file, config)
}

// unsealed is a probe that also initializes and unseals the Vault if necessary.
func (s vaultEngine) unsealed(healthy probe) probe {
	v := vaultClient{address: s.record.Vault.Address}
	return func(ctx context.Context) error {
		err := healthy(ctx)
		if err == nil {
			return nil
		}
		return errors.Join(err, v.open(ctx, s.layout.vaultKeys()))
	}
}

// vaultClient makes the three calls that unseal a Vault.
type vaultClient struct{ address string }

// open makes the next call: initialize or unseal.
func (v vaultClient) open(ctx context.Context, keyFile string) error {
	var status struct{ Initialized, Sealed bool }
	if err := v.call(ctx, http.MethodGet, "seal-status", nil, &status); err != nil || (status.Initialized && !status.Sealed) {
		return err
	}
	if !status.Initialized {
		return v.initialize(ctx, keyFile)
	}
	var keys vaultKeys
	found, err := readJSON(keyFile, &keys)
	if err != nil || !found {
		return errors.Join(err, fmt.Errorf("no unseal key in %s: gpuaas dev down --wipe starts over", keyFile))
	}
	return v.call(ctx, http.MethodPut, "unseal", map[string]any{"key": base64.StdEncoding.EncodeToString(keys.UnsealKey)}, nil)
}

func (v vaultClient) initialize(ctx context.Context, keyFile string) error {
	var made struct {
		Keys  [][]byte `json:"keys_base64"`
		Token string   `json:"root_token"`
	}
	one := map[string]any{"secret_shares": 1, "secret_threshold": 1}
	if err := v.call(ctx, http.MethodPut, "init", one, &made); err != nil {
		return err
	}
	if len(made.Keys) != 1 {
		return fmt.Errorf("vault returned %d unseal keys", len(made.Keys))
	}
	return writePrivateJSON(keyFile, vaultKeys{UnsealKey: made.Keys[0], RootToken: made.Token})
}

func (v vaultClient) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, v.address+"/v1/sys/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := send(&http.Transport{}, req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("vault returned %s for %s", resp.Status, path)
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
	found, err := readJSON(s.layout.vaultKeys(), &keys)
	if err != nil || !found {
		return errors.Join(err, stackError("gpuaas dev down --wipe starts over", "%s does not exist", s.layout.vaultKeys()))
	}
	return writePrivate(s.layout.vaultToken(), []byte(keys.RootToken+"\n"))
}

func (s vaultEngine) copyToken() error {
	token := s.getenv(varVaultToken)
	for _, file := range []string{s.getenv(varVaultTokenFile), filepath.Join(s.getenv("HOME"), ".vault-token"), s.layout.vaultToken()} {
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
	return writePrivate(s.layout.vaultToken(), []byte(token+"\n"))
}
