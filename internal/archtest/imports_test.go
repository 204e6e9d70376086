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
	// kubernetes is the prefix of the modules of the Kubernetes client. Only gpuaas-cluster-agent
	// reaches them.
	kubernetes = "k8s.io"
)

// A row lists packages that a folder must not reach, directly or through other
// packages. The linter checks direct imports (see .golangci.yml).
type row struct {
	folder string
	never  []string
}

// rows has one entry for every folder that contains Go packages. The first match
// applies.
func rows() []row {
	clients := []string{temporal, postgres, vault}
	ours := func(folders ...string) []string {
		for i := range folders {
			folders[i] = module + "/" + folders[i]
		}
		return folders
	}
	agentNever := append(ours("workflows", "activities", "worker", "api", "cli", "internal", "deploy", "test"),
		temporal, postgres, vault, "google.golang.org/grpc", "google.golang.org/protobuf", "github.com/prometheus")
	programs := ours("cli", "agent", "deploy", "test")
	return []row{
		{"schema", append(ours("activities", "workflows", "worker", "api", "agent", "cli", "internal", "deploy", "test"), clients...)},
		{"activities", append(ours("workflows", "worker", "api", "agent", "cli", "internal", "deploy", "test"), postgres, vault)},
		{"workflows", append(ours("worker", "api", "agent", "cli", "internal", "deploy", "test"), postgres, vault)},
		{"api/server", programs},
		{"api/client", append(ours("workflows", "activities", "worker", "agent", "cli", "internal", "deploy", "test", "api/adminapi", "api/edge", "api/nodeapi", "api/server"), clients...)},
		{"api", append(ours("workflows", "activities", "worker", "agent", "cli", "internal", "deploy", "test"), clients...)},
		{"agent", agentNever},
		{"cli", append(ours("workflows", "worker", "agent", "internal/store", "internal/postgres", "internal/vault", "deploy", "test"), postgres, vault)},
		{"deploy/dev/demo", nil},
		{"deploy/dev/workload", agentNeverDeploy(agentNever)},
		{"deploy/dev", ours("workflows", "activities", "worker", "api", "agent", "internal", "test")},
		{"deploy", nil},
		{"internal/archtest", nil},
		{"internal/clusteragent", append(ours("workflows", "activities", "worker", "api", "agent", "cli", "deploy", "test"), clients...)},
		{"internal/daemon", append(ours("workflows", "activities", "worker", "api", "agent", "cli", "deploy", "test"), temporal, vault)},
		{"internal/postgres", append(ours("schema/lifecycle", "schema/task", "workflows", "activities", "worker", "api", "agent", "cli", "deploy", "test"), temporal, vault)},
		{"internal", ours("workflows", "worker", "api/server", "agent", "cli", "deploy", "test")},
		{"worker", programs},
		{"cmd/gpuaas-node-agent", append(ours("workflows", "activities", "worker", "api", "cli", "internal/store", "deploy", "test"), clients...)},
		{"cmd/gpuaas-dev-agent", append(ours("workflows", "activities", "worker", "api", "cli", "internal/store", "test"), clients...)},
		{"cmd/gpuaas-cluster-agent", append(ours("workflows", "activities", "worker", "api", "agent", "cli", "internal/store", "deploy", "test"), clients...)},
		{"cmd/gpuaas-worker", programs},
		{"cmd/gpuaas-api", programs},
		{"cmd/gpuaas-fleet", append(ours("workflows", "activities", "worker", "api", "cli", "internal/store"), clients...)},
		{"cmd/gpuaas", ours("agent", "test")},
		{"test/fleet", append(ours("workflows", "activities", "worker", "api", "cli", "internal/store"), clients...)},
		{"test", nil},
	}
}

// agentNeverDeploy drops the development stack from the agent's row, for the
// simulated workload driver, which is part of it.
func agentNeverDeploy(never []string) []string {
	return slices.DeleteFunc(slices.Clone(never), func(p string) bool { return p == module+"/deploy" })
}

func TestReach(t *testing.T) {
	t.Parallel()
	goFiles(t, func(string, string) {}) // makes go test's cache depend on every file
	assert.Empty(t, reach(packages(t)))
}

// reach lists the forbidden packages that packages reach.
func reach(pkgs []pkg) (violations []string) {
	for _, p := range pkgs {
		i := slices.IndexFunc(rows(), func(r row) bool { return within(p.folder(), r.folder) })
		if i < 0 {
			violations = append(violations, p.folder()+" has no row in the import table")
			continue
		}
		forbidden := rows()[i].never
		if !slices.Contains([]string{"internal/clusteragent", "cmd/gpuaas-cluster-agent"}, p.folder()) {
			forbidden = append(slices.Clone(forbidden), kubernetes)
		}
		for _, never := range forbidden {
			for _, dep := range p.Deps {
				if within(dep, never) {
					violations = append(violations, p.folder()+" reaches "+dep)
				}
			}
		}
	}
	return violations
}

func TestReachReports(t *testing.T) {
	t.Parallel()
	got := reach([]pkg{
		{ImportPath: module + "/agent", Deps: []string{module + "/schema", "go.temporal.io/sdk/client"}},
		{ImportPath: module + "/cli", Deps: []string{module + "/internal/store/sqlc", module + "/internal/temporal"}},
		{ImportPath: module + "/deploy/dev", Deps: []string{module + "/internal/temporal"}},
		{ImportPath: module + "/worker", Deps: []string{"k8s.io/client-go/rest", "sigs.k8s.io/yaml"}},
		{ImportPath: module + "/internal/clusteragent", Deps: []string{"k8s.io/client-go/rest"}},
		{ImportPath: module + "/helpers"},
	})
	require.Equal(t, []string{
		"agent reaches go.temporal.io/sdk/client",
		"cli reaches " + module + "/internal/store/sqlc",
		"deploy/dev reaches " + module + "/internal/temporal",
		"worker reaches k8s.io/client-go/rest",
		"helpers has no row in the import table",
	}, got)
}

// A group is a folder whose packages do not import each other. Its shared
// packages are the exception: every package of the group may import them.
type group struct {
	folder string
	shared []string
}

func groups() []group {
	return []group{
		{"agent", []string{"internal"}},
		{"internal", []string{"postgres", "daemon"}},
		{"internal/providers", nil},
	}
}

// TestGroups checks that adapters, and the packages of the agent, do not import
// each other. Test files may.
func TestGroups(t *testing.T) {
	t.Parallel()
	assert.Empty(t, siblings(packages(t)))
}

// siblings lists the imports between packages of one group. A package belongs to
// the folder directly below the group's.
func siblings(pkgs []pkg) (violations []string) {
	for _, g := range groups() {
		for _, p := range pkgs {
			own, ok := member(p.ImportPath, g.folder)
			if !ok || own == "archtest" {
				continue
			}
			for _, imp := range p.Imports {
				other, ok := member(imp, g.folder)
				if ok && other != own && !slices.Contains(g.shared, other) {
					violations = append(violations, p.folder()+" imports "+strings.TrimPrefix(imp, module+"/"))
				}
			}
		}
	}
	return violations
}

// member returns the name of the folder directly below folder that holds path.
func member(path, folder string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, module+"/"+folder+"/")
	name, _, _ = strings.Cut(rest, "/")
	return name, ok
}

func TestSiblingsReports(t *testing.T) {
	t.Parallel()
	at := func(path string, imports ...string) pkg {
		for i := range imports {
			imports[i] = module + "/" + imports[i]
		}
		return pkg{ImportPath: module + "/" + path, Imports: imports}
	}
	require.Equal(t, []string{
		"agent/identity imports agent/runner",
		"internal/store imports internal/vault",
		"internal/providers/maas imports internal/providers/manual",
	}, siblings([]pkg{
		at("agent", "agent/identity", "agent/runner"),
		at("agent/identity", "agent/runner", "agent/internal/wait", "schema"),
		at("agent/identity/keys", "agent/identity"),
		at("internal/store", "internal/vault", "internal/postgres", "internal/store/sqlc", "activities"),
		at("internal/providers/maas", "internal/providers/manual", "internal/daemon"),
		at("worker", "internal/store", "internal/vault"),
	}))
}
