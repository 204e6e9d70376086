package dev

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// findPostgres answers the folder of a Postgres server's programs, "" when the
// machine has none: PATH first, then where systems and Homebrew put them, the
// newest version first.
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

// needPostgres answers findPostgres, after the project's own script has
// installed the system's package where there is none. The script says what it
// is about to install.
func needPostgres(ctx context.Context, look func(string) string, tree string, talk io.Writer) (string, error) {
	if dir := findPostgres(look); dir != "" {
		return dir, nil
	}
	script := filepath.Join(tree, "tools", "need-postgres.sh")
	if _, err := os.Stat(script); tree != "" && err == nil {
		cmd := exec.CommandContext(ctx, "sh", script)
		cmd.Dir, cmd.Stdout, cmd.Stderr = tree, talk, talk
		if err := cmd.Run(); err != nil {
			return "", fault("install PostgreSQL 15 or later, or set "+varDatabaseURL, "installing a Postgres server: %v", err)
		}
		if dir := findPostgres(look); dir != "" {
			return dir, nil
		}
	}
	return "", fault("Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; macOS: brew install "+
		"postgresql; or set "+varDatabaseURL+" to use a server that runs already",
		"there is no Postgres server on this machine")
}
