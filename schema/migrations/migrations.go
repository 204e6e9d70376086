// Package migrations holds the database's schema as numbered SQL files in goose's format.
// Released files are never edited: a change is a new file.
//
// A migration runs while the programs of the previous version work, and they must work
// after it. A test reads the files from 0014 on and holds these rules. The small tables,
// which have a row per version or setting, are exempt from 2 to 4.
//
//  1. A file that removes or renames what an earlier version uses (DROP TABLE, DROP
//     COLUMN, DROP FUNCTION, DROP DOMAIN, RENAME, SET NOT NULL, TYPE) sets
//     schema_programs.oldest_program to the number of the first migration whose
//     programs do not use it. Such a file is released one version after the programs that
//     no longer use it. All other files are additive.
//
//  2. A constraint is added to a table with NOT VALID, and a later file validates it (VALIDATE
//     CONSTRAINT), so that no lock lasts as long as a scan. A unique constraint is added
//     USING INDEX. A constraint allows all that the previous version writes.
//
//  3. An index is made on a table with CREATE INDEX CONCURRENTLY, in a file of its own with
//     "-- +goose NO TRANSACTION" that sets lock_timeout, first drops what a stopped
//     migration left, and resets lock_timeout:
//
//     SET lock_timeout = '15min';
//     DROP INDEX CONCURRENTLY IF EXISTS nodes_sku_idx;
//     CREATE INDEX CONCURRENTLY nodes_sku_idx ON nodes (sku);
//     RESET lock_timeout;
//
//  4. A file changes no rows of a table (UPDATE, DELETE): a program does that in batches. It
//     alters only one table, and a column that it adds is nullable or has a constant
//     default.
//
// A table that the same file creates is exempt. The locks that are left are short: a
// migration stops after 3 s without a lock and is repeated (internal/postgres).
package migrations

import (
	"embed"
	"io/fs"
	"strconv"
	"strings"
)

// Files are the migrations, in the order of their numbers.
//
//go:embed *.sql
var Files embed.FS

// Grants creates the roles of the processes and sets their privileges. It is run after
// the migrations, each time.
//
//go:embed grants/grants.sql
var Grants string

// Latest returns the number of the newest migration: the schema version that the
// programs of this version need.
func Latest() (latest int64) {
	names, _ := fs.Glob(Files, "*.sql") // the pattern is valid
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		n, _ := strconv.ParseInt(number, 10, 64) // a test parses the names
		latest = max(latest, n)
	}
	return latest
}
