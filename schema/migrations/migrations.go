// Package migrations holds the database's schema as numbered SQL files in
// goose's format. Released files are never edited: a change is a new file, and
// the previous version of the programs must work after it.
package migrations

import "embed"

// Files are the migrations, in the order of their numbers.
//
//go:embed *.sql
var Files embed.FS

// Grants creates the roles of the processes and sets their privileges. It is run after
// the migrations, each time.
//
//go:embed grants/grants.sql
var Grants string
