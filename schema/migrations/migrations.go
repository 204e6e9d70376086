// Package migrations holds the database's schema: numbered SQL files in goose's
// format, embedded so that `gpuaas admin setup` needs no files beside it.
// Applied files are never edited; a change is a new file that first expands.
package migrations

import "embed"

// Files are the migrations, in the order of their numbers.
//
//go:embed *.sql
var Files embed.FS
