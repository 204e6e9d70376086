package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.temporal.io/server/common/config"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/schema/sqlite"
	"google.golang.org/protobuf/types/known/durationpb"
)

// openStores prepares the server's databases and returns their settings.
func openStores(o options) (config.Persistence, error) {
	p := config.Persistence{DefaultStore: storeName, VisibilityStore: storeName, NumHistoryShards: sqliteShards}
	if o.postgres == "" {
		sql, err := openStorage(o)
		p.DataStores = map[string]config.DataStore{storeName: {SQL: sql}}
		return p, err
	}
	sql, visibility, err := openPostgres(o)
	p.VisibilityStore, p.NumHistoryShards = visibilityName, postgresShards
	p.DataStores = map[string]config.DataStore{storeName: {SQL: sql}, visibilityName: {SQL: visibility}}
	return p, err
}

// openStorage returns the SQLite settings for o.db. It installs the schema in a new
// file and creates a missing o.namespace. Only the owner can read the file, because
// histories are business data.
func openStorage(o options) (*config.SQL, error) {
	if strings.ContainsAny(o.db, "?#%") {
		return nil, fmt.Errorf("--db %q: the path must not contain '?', '#' or '%%'", o.db)
	}
	file, err := filepath.Abs(o.db)
	if err != nil {
		return nil, err
	}
	sql := &config.SQL{
		PluginName:   sqliteplugin.PluginName,
		DatabaseName: file,
		// A commit is in the write-ahead log before it is acknowledged, so kill -9
		// loses no data. One connection, because SQLite has one writer.
		ConnectAttributes: map[string]string{
			"mode": "rwc", "cache": "private", "journal_mode": "wal", "synchronous": "2", "busy_timeout": "10000",
		},
	}
	if err := createSchema(sql, file); err != nil {
		return nil, err
	}
	ns, err := sqlite.NewNamespaceConfig(clusterName, o.namespace, false, nil)
	if err != nil {
		return nil, err
	}
	ns.Detail.Config.Retention = durationpb.New(o.retention)
	if err := sqlite.CreateNamespaces(sql, ns); err != nil {
		return nil, fmt.Errorf("creating namespace %s in %s: %w", o.namespace, file, err)
	}
	return sql, nil
}

// createSchema sets up a new file. A marker file identifies an interrupted setup.
// createSchema then starts over, because the file contains no data yet.
func createSchema(sql *config.SQL, file string) error {
	marker := file + ".incomplete"
	_, markerErr := os.Stat(marker)
	_, fileErr := os.Stat(file)
	if fileErr == nil && errors.Is(markerErr, fs.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return fmt.Errorf("preparing %s: %w", file, err)
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.RemoveAll(file + suffix); err != nil {
			return err
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := sqlite.SetupSchema(sql); err != nil {
		return fmt.Errorf("setting up the schema in %s: %w", file, err)
	}
	return os.Remove(marker)
}
