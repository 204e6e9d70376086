package worker

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema"
)

// BackupOptions are the options of Backup.
type BackupOptions struct {
	// File is the path of the dump, which must not exist.
	File string
	// Getenv reads the environment.
	Getenv func(string) string
	// Progress receives a line for each step.
	Progress io.Writer
}

// BackupFile is a dump that Backup wrote.
type BackupFile struct {
	File  string    `json:"file"`
	Bytes int64     `json:"bytes"`
	At    time.Time `json:"at"`
}

// backupConfig is the configuration of Backup.
type backupConfig struct {
	DatabaseURL schema.Secret `env:"GPUAAS_DATABASE_URL,required" help:"Postgres connection URL of the owner of the tables."`
}

// Backup writes a dump of the database into a file, which only its owner may read. An error leaves no file.
func Backup(ctx context.Context, o BackupOptions) (BackupFile, error) {
	var c backupConfig
	if err := daemon.Load(&c, o.Getenv); err != nil {
		return BackupFile{}, schema.AsError(err).WithNext("gpuaas admin backup --help")
	}
	b := BackupFile{File: o.File, At: time.Now().UTC()}
	fmt.Fprintf(o.Progress, "dumping the database into %s\n", o.File)
	if err := postgres.Dump(ctx, c.DatabaseURL.Reveal(), o.File, ""); err != nil {
		return BackupFile{}, err
	}
	info, err := os.Stat(o.File)
	if err != nil {
		return BackupFile{}, err
	}
	b.Bytes = info.Size()
	return b, nil
}
