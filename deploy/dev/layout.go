package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// layout is the folder with the stack's files:
//
//	stack.json      addresses and ports; no secret
//	lock            held by the running command
//	log/PART.log    output of each part
//	run/PART.json   process of each part
//	secrets/        tokens, role ids, passwords
//	pg/ vault/ temporal.db    state of the engines
//	api/            server certificate of the node API
//	agents/NAME/    files of a node agent
//	releases/       signed releases of the agent
//	fleet/          files of the simulated nodes of dev fleet
//	libvirt/        consoles, disks and boot files of virtual machines, which outlive the stack
type layout struct{ dir string }

// privateFile is the mode of every file, privateDir of every folder except the
// layout's root, which Postgres's user must be able to traverse.
const (
	privateFile = 0o600
	privateDir  = 0o700
)

func (l layout) stackFile() string         { return filepath.Join(l.dir, "stack.json") }
func (l layout) lockFile() string          { return filepath.Join(l.dir, "lock") }
func (l layout) logDir() string            { return filepath.Join(l.dir, "log") }
func (l layout) secretsDir() string        { return filepath.Join(l.dir, "secrets") }
func (l layout) secret(name string) string { return filepath.Join(l.secretsDir(), name) }
func (l layout) adminToken() string        { return l.secret("admin-token") }
func (l layout) vaultToken() string        { return l.secret("vault-root-token") }
func (l layout) databaseURL() string       { return l.secret("database-url") }

// roleURL is the file with the database's URL for a role, database for the owner.
func (l layout) roleURL(role string) string {
	if role == database {
		return l.databaseURL()
	}
	return l.secret("database-url-" + role)
}

func (l layout) rolePassword(role string) string {
	if role == database {
		return l.secret("postgres-password")
	}
	return l.secret("postgres-password-" + role)
}

func (l layout) postgresDir() string         { return filepath.Join(l.dir, "pg") }
func (l layout) vaultDir() string            { return filepath.Join(l.dir, "vault") }
func (l layout) vaultKeys() string           { return l.secret("vault-keys.json") }
func (l layout) temporalFile() string        { return filepath.Join(l.dir, "temporal.db") }
func (l layout) agentsDir() string           { return filepath.Join(l.dir, "agents") }
func (l layout) agentDir(name string) string { return filepath.Join(l.agentsDir(), name) }
func (l layout) fleetDir() string            { return filepath.Join(l.dir, "fleet") }

// entries are the names in the root that belong to the layout. A wipe removes only
// these, and libvirtDir if it has no machine.
func (l layout) entries() []string {
	return []string{
		"api", "agents", "fleet", "log", "pg", "releases", "run", "secrets", "stack.json", "temporal.db", "temporal.db-shm",
		"temporal.db-wal", "temporal.db.incomplete", "vault", "lock",
	}
}

// newLayout returns the layout of a folder that may not exist yet.
func newLayout(dir string) (layout, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return layout{}, fmt.Errorf("--dir %s: %w", dir, err)
	}
	return layout{dir: abs}, nil
}

// make creates the folders. For root, the layout's root is traversable by others,
// because Postgres then runs as another user.
func (l layout) make() error {
	mode := fs.FileMode(privateDir)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	if _, err := os.Stat(l.dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(l.dir, mode); err != nil {
			return fmt.Errorf("creating the stack's folder: %w", err)
		}
		if err := os.Chmod(l.dir, mode); err != nil {
			return err
		}
	}
	for _, dir := range []string{l.processes().dir, l.logDir(), l.secretsDir(), l.agentsDir(), releasesDir(l)} {
		if err := os.MkdirAll(dir, privateDir); err != nil {
			return fmt.Errorf("creating the stack's folder: %w", err)
		}
	}
	return nil
}

// cutFolder returns path relative to a folder that contains it.
func cutFolder(path, folder string) (string, bool) {
	rest, err := filepath.Rel(folder, path)
	return rest, err == nil && filepath.IsLocal(rest)
}
