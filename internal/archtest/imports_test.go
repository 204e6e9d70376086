package archtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	temporal = "go.temporal.io"
	postgres = "github.com/jackc/pgx"
	vault    = "github.com/hashicorp/vault"
)

// A row says what the packages of a folder never reach, directly or through
// others. Direct imports are the linter's (see .golangci.yml).
type row struct {
	folder string
	never  []string
}

// rows has one entry for every folder that holds Go packages; the first that
// matches counts.
func rows() []row {
	clients := []string{temporal, postgres, vault}
	ours := func(folders ...string) []string {
		for i := range folders {
			folders[i] = module + "/" + folders[i]
		}
		return folders
	}
	return []row{
		{"schema", append(ours("activities", "workflows", "worker", "api", "agent", "cli", "internal"), clients...)},
		{"activities", append(ours("workflows", "worker", "api", "agent", "cli", "internal"), postgres, vault)},
		{"workflows", append(ours("worker", "api", "agent", "cli", "internal"), postgres, vault)},
		{"api/server", ours("cli", "agent")},
		{"api", append(ours("workflows", "activities", "worker", "agent", "cli", "internal"), clients...)},
		{"agent", append(ours("workflows", "activities", "worker", "api", "cli", "internal"),
			temporal, postgres, vault, "google.golang.org/grpc", "google.golang.org/protobuf", "github.com/prometheus")},
		{"cli", append(ours("workflows", "activities", "worker", "api", "agent", "internal/store", "internal/vault"), postgres, vault)},
		{"deploy/dev/demo", nil},
		{"deploy/dev", ours("workflows", "activities", "worker", "api", "agent", "internal")},
		{"internal/archtest", nil},
		{"internal/testkit", ours("worker", "cli", "agent")},
		{"internal", ours("workflows", "worker", "api/server", "agent", "cli")},
		{"worker", ours("cli", "agent")},
		{"cmd/gpuaas-node-agent", append(ours("workflows", "activities", "worker", "api", "cli", "internal"), clients...)},
		{"cmd/gpuaas-worker", ours("cli", "agent")},
		{"cmd/gpuaas-api", ours("cli", "agent")},
		{"cmd/gpuaas-fleet", append(ours("workflows", "activities", "worker", "api", "cli", "internal"), clients...)},
		{"cmd/gpuaas", ours("agent")},
		{"test/fleet", append(ours("workflows", "activities", "worker", "api", "cli", "internal"), clients...)},
		{"deploy", nil},
		{"test", nil},
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	goFiles(t, func(string, string) {}) // so that a cached pass ends with the next change of any file
	assert.Empty(t, reach(packages(t)))
}

// reach lists what the packages reach and must not.
func reach(pkgs []pkg) (faults []string) {
	for _, p := range pkgs {
		i := slices.IndexFunc(rows(), func(r row) bool { return within(p.folder(), r.folder) })
		if i < 0 {
			faults = append(faults, p.folder()+" has no row in the import table")
			continue
		}
		for _, never := range rows()[i].never {
			for _, dep := range p.Deps {
				if within(dep, never) {
					faults = append(faults, p.folder()+" reaches "+dep)
				}
			}
		}
	}
	return faults
}

func TestReachReports(t *testing.T) {
	t.Parallel()
	got := reach([]pkg{
		{ImportPath: module + "/agent", Deps: []string{module + "/schema", "go.temporal.io/sdk/client"}},
		{ImportPath: module + "/cli", Deps: []string{module + "/internal/store/sqlc", module + "/internal/temporal"}},
		{ImportPath: module + "/deploy/dev", Deps: []string{module + "/internal/temporal"}},
		{ImportPath: module + "/helpers"},
	})
	require.Equal(t, []string{
		"agent reaches go.temporal.io/sdk/client",
		"cli reaches " + module + "/internal/store/sqlc",
		"deploy/dev reaches " + module + "/internal/temporal",
		"helpers has no row in the import table",
	}, got)
}

// Adapters meet in the worker's and the API's wiring only; all of them may use the
// packages daemon and postgres. Test files may use testkit and, through it, what
// they need.
func TestAdaptersDoNotImportEachOther(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		own, ok := adapter(p.ImportPath)
		if !ok || own == "archtest" || own == "testkit" {
			continue
		}
		for _, imp := range p.Imports {
			other, ok := adapter(imp)
			shared := other == "daemon" || other == "postgres"
			assert.False(t, ok && other != own && !shared, "%s imports %s", p.ImportPath, imp)
		}
	}
}

// adapter names the adapter that a package belongs to: the folder under
// internal, and for providers the one below it.
func adapter(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, module+"/internal/")
	if !ok {
		return "", false
	}
	parts := strings.SplitN(rest, "/", 3)
	if parts[0] == "providers" && len(parts) > 1 {
		return "providers/" + parts[1], true
	}
	return parts[0], true
}

func TestAdapter(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		module + "/internal/store/sqlc":       "store",
		module + "/internal/providers/manual": "providers/manual",
		module + "/schema":                    "",
	} {
		got, _ := adapter(path)
		require.Equal(t, want, got)
	}
}
