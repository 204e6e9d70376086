package worker

import (
	"context"
	"fmt"
	"io"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
)

// rotateConfig is the configuration of RotateSecretIDs.
type rotateConfig struct {
	VaultAddr      string `env:"VAULT_ADDR,required" help:"URL of Vault."`
	VaultTokenFile string `env:"GPUAAS_VAULT_TOKEN_FILE,required" help:"File with a Vault token that has the policy gpuaas-secret-ids."`
	OutDir         string `env:"GPUAAS_SETUP_OUT_DIR,required" help:"Directory to which the secret IDs are written."`
	Env            string `env:"GPUAAS_ENV,required" help:"Name of the environment."`
}

// RotateSecretIDs replaces the files with the secret IDs of the worker, the API and the rotator,
// and writes a line to progress.
func RotateSecretIDs(ctx context.Context, getenv func(string) string, progress io.Writer) error {
	var c rotateConfig
	if err := daemon.Load(&c, getenv); err != nil {
		return schema.AsError(err).WithNext("gpuaas admin rotate-secret-ids --help")
	}
	admin, err := vault.NewAdmin(setupConfig{VaultAddr: c.VaultAddr, VaultTokenFile: c.VaultTokenFile, Env: c.Env}.vaultAdmin(progress))
	if err == nil {
		err = admin.RotateSecretIDs(ctx, c.OutDir)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "vault: the secret IDs in %s are new\n", c.OutDir)
	return nil
}
