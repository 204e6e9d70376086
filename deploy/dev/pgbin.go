package dev

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// findPostgres returns the folder with a Postgres server's programs, "" if the
// machine has none. It searches PATH, then the usual folders of systems and
// Homebrew, newest version first.
func findPostgres(look func(string) string) string {
	if path := look("postgres"); path != "" {
		if real, err := filepath.EvalSymlinks(path); err == nil && isServer(filepath.Dir(real)) {
			return filepath.Dir(real)
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin", "/usr/local/pgsql/bin",
	} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		slices.Reverse(dirs)
		if i := slices.IndexFunc(dirs, isServer); i >= 0 {
			return dirs[i]
		}
	}
	return ""
}

func isServer(dir string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// needPostgres is findPostgres. If there is no server, it first runs the project's
// script, which installs the system's package after announcing it.
func needPostgres(ctx context.Context, look func(string) string, sourceTree string, messages io.Writer) (string, error) {
	if dir := findPostgres(look); dir != "" {
		return dir, nil
	}
	script := filepath.Join(sourceTree, "tools", "need-postgres.sh")
	if _, err := os.Stat(script); sourceTree != "" && err == nil {
		cmd := exec.CommandContext(ctx, "sh", script)
		cmd.Dir, cmd.Stdout, cmd.Stderr = sourceTree, messages, messages
		if err := cmd.Run(); err != nil {
			return "", stackError("install PostgreSQL 15 or later, or set "+varDatabaseURL, "installing a Postgres server: %v", err)
		}
		if dir := findPostgres(look); dir != "" {
			return dir, nil
		}
	}
	return "", stackError("Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; macOS: brew install "+
		"postgresql; or set "+varDatabaseURL+" to use a running server",
		"there is no Postgres server on this machine")
}
