package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/go-hclog"
	kubernetes "github.com/hashicorp/vault-plugin-auth-kubernetes"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/logical/pki"
	"github.com/hashicorp/vault/builtin/logical/transit"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/vault"
)

// keys is the content of the key file.
type keys struct {
	UnsealKey []byte `json:"unseal_key"`
	RootToken string `json:"root_token"`
}

// openCore returns an unsealed core on the storage in o.data, and initializes new
// storage. A marker file identifies an initialization that was interrupted before its
// keys were on disk. openCore then starts over.
func openCore(ctx context.Context, o options, logger hclog.Logger) (*vault.Core, *boltStorage, error) {
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return nil, nil, fmt.Errorf("creating the storage folder: %w", err)
	}
	file, marker := filepath.Join(o.data, "vault.db"), filepath.Join(o.data, "incomplete")
	fresh, err := isFresh(file, marker)
	if err != nil {
		return nil, nil, err
	}
	storage, err := openBolt(file)
	if err != nil {
		return nil, nil, err
	}
	core, err := newCore(storage, logger)
	if err == nil {
		err = unseal(ctx, core, o.keys, marker, fresh)
	}
	if err != nil {
		return nil, nil, errors.Join(err, storage.Close())
	}
	return core, storage, nil
}

// isFresh reports whether the storage is new, and then creates the marker.
func isFresh(file, marker string) (bool, error) {
	_, markerErr := os.Stat(marker)
	_, fileErr := os.Stat(file)
	if fileErr == nil && errors.Is(markerErr, fs.ErrNotExist) {
		return false, nil
	}
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return false, fmt.Errorf("preparing the storage: %w", err)
	}
	return true, os.RemoveAll(file)
}

// unseal unseals the core with the key file, which it creates for a new core.
func unseal(ctx context.Context, core *vault.Core, keyFile, marker string, fresh bool) error {
	if fresh {
		if err := initialize(ctx, core, keyFile); err != nil {
			return err
		}
	}
	k, err := readKeys(keyFile)
	if err != nil {
		return err
	}
	open, err := core.Unseal(k.UnsealKey)
	if err != nil {
		return fmt.Errorf("unsealing: %w (the key in %s belongs to other storage; remove both to start over)", err, keyFile)
	}
	if !open {
		return fmt.Errorf("still sealed after using the key in %s; remove it and the storage to start over", keyFile)
	}
	if fresh {
		return os.Remove(marker)
	}
	return nil
}

func initialize(ctx context.Context, core *vault.Core, keyFile string) error {
	one := &vault.SealConfig{SecretShares: 1, SecretThreshold: 1}
	result, err := core.Initialize(ctx, &vault.InitParams{BarrierConfig: one, RecoveryConfig: &vault.SealConfig{}})
	if err != nil {
		return fmt.Errorf("initializing: %w", err)
	}
	content, err := json.MarshalIndent(keys{UnsealKey: result.SecretShares[0], RootToken: result.RootToken}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(keyFile), 0o700); err != nil {
		return err
	}
	return writeSecret(keyFile, content)
}

// writeSecret replaces a file atomically; only its owner can read it.
func writeSecret(file string, content []byte) error {
	temp := file + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("writing the key file: %w", err)
	}
	_, writeErr := f.Write(append(content, '\n'))
	if err := errors.Join(writeErr, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing the key file: %w", err)
	}
	return os.Rename(temp, file)
}

func readKeys(file string) (keys, error) {
	var k keys
	content, err := os.ReadFile(file)
	if err != nil {
		return k, fmt.Errorf("reading the unseal key: %w (the storage cannot be opened without it; restore it, or remove the storage)", err)
	}
	if err := json.Unmarshal(content, &k); err != nil {
		return k, fmt.Errorf("reading the unseal key in %s: %w", file, err)
	}
	return k, nil
}

func newCore(storage *boltStorage, logger hclog.Logger) (*vault.Core, error) {
	engines := builtins{
		"pki":        {kind: consts.PluginTypeSecrets, factory: pki.Factory},
		"transit":    {kind: consts.PluginTypeSecrets, factory: transit.Factory},
		"kv":         {kind: consts.PluginTypeSecrets, factory: kv.Factory},
		"approle":    {kind: consts.PluginTypeCredential, factory: approle.Factory},
		"kubernetes": {kind: consts.PluginTypeCredential, factory: kubernetes.Factory},
	}
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical:           storage,
		StorageType:        "file",
		Logger:             logger,
		LogLevel:           logger.GetLevel().String(),
		DisableMlock:       true,
		LogicalBackends:    engines.factories(consts.PluginTypeSecrets),
		CredentialBackends: engines.factories(consts.PluginTypeCredential),
		BuiltinRegistry:    engines,
		ClusterName:        "gpuaas-dev",
	})
	if err != nil {
		return nil, fmt.Errorf("creating the server: %w", err)
	}
	return core, nil
}

// builtins is the fixed list of engines by name, in the form of Vault's plugin
// catalog.
type builtins map[string]builtin

type builtin struct {
	kind    consts.PluginType
	factory logical.Factory
}

func (b builtins) factories(kind consts.PluginType) map[string]logical.Factory {
	out := make(map[string]logical.Factory)
	for _, name := range b.Keys(kind) {
		out[name] = b[name].factory
	}
	return out
}

// Contains reports whether the engine is built in.
func (b builtins) Contains(name string, kind consts.PluginType) bool {
	entry, ok := b[name]
	return ok && (kind == consts.PluginTypeUnknown || entry.kind == kind)
}

// Get returns a constructor of the engine's factory.
func (b builtins) Get(name string, kind consts.PluginType) (func() (any, error), bool) {
	if !b.Contains(name, kind) {
		return nil, false
	}
	return func() (any, error) { return b[name].factory, nil }, true
}

// Keys lists the engines of a kind.
func (b builtins) Keys(kind consts.PluginType) []string {
	var names []string
	for name, entry := range b {
		if entry.kind == kind {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// DeprecationStatus reports that every engine is supported.
func (b builtins) DeprecationStatus(name string, kind consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, b.Contains(name, kind)
}

// IsBuiltinEntPlugin reports that no engine is an Enterprise one.
func (b builtins) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }
