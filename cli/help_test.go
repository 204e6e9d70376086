package cli

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// foreign are the commands whose help is not this package's.
func foreign(c *cobra.Command) bool {
	switch c.Name() {
	case "completion", "help", "dev", "demo":
		return c.Parent() != nil && !c.Parent().HasParent()
	}
	return false
}

func walk(c *cobra.Command, visit func(*cobra.Command)) {
	if foreign(c) {
		return
	}
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	walk(newRoot(setup(t).env), func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())
		t.Run(strings.Join(path, "_"), func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			require.Zero(t, h.run(append(path[1:], "--help")...))
			require.Empty(t, h.err.String())
			compareGolden(t, filepath.Join("testdata", "help", strings.Join(path, "_")+".txt"), h.out.String())
		})
		t.Run(strings.Join(path, "_")+"_is_complete", func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, c.Short)
			require.NotEmpty(t, c.Long)
			if c.HasSubCommands() && c.HasParent() && !slices.Contains([]string{"op", "node", "rotate", "trust", "admin"}, c.Name()) {
				return
			}
			require.Contains(t, c.Example, c.CommandPath())
		})
	})
}

// TestExamples: each example is a command line of that command with valid flags and
// arguments.
func TestExamples(t *testing.T) {
	t.Parallel()
	word := regexp.MustCompile(`"[^"]*"|'[^']*'|[^\s|<>]+|[|<>]`)
	checked := 0
	walk(newRoot(setup(t).env), func(c *cobra.Command) {
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
			words := word.FindAllString(line, -1)
			if i := slices.IndexFunc(words, func(w string) bool { return slices.Contains([]string{"|", "<", ">", "#"}, w) }); i >= 0 {
				words = words[:i]
			}
			if len(words) == 0 || words[0] != "gpuaas" {
				continue
			}
			for i, w := range words {
				words[i] = strings.Trim(w, `"'`)
			}
			root := newRoot(setup(t).env)
			found, args, err := root.Find(words[1:])
			require.NoError(t, err, line)
			require.Contains(t, found.CommandPath(), c.CommandPath(), line)
			require.NoError(t, found.ParseFlags(args), line)
			require.NoError(t, found.ValidateArgs(found.Flags().Args()), line)
			checked++
		}
	})
	require.Greater(t, checked, 50)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]string{
		"unknown-command":    "nod",
		"unknown-subcommand": "node drian gpu-17",
		"unknown-flag":       "node list --fast",
		"missing-argument":   "node drain",
		"extra-argument":     "node show gpu-17 gpu-18",
		"bad-output":         "node list -o xml",
		"bad-duration":       "node drain gpu-17 --timeout soon",
		"short-drain":        "node drain gpu-17 --deadline 10ms --yes",
		"wait-and-no-wait":   "node provision gpu-17 --wait --no-wait",
		"negative-timeout":   "node provision gpu-17 --timeout -1s",
		"zero-timeout":       "op watch gpu-17 --timeout 0",
		"force-no-reason":    "op force gpu-17 --yes",
		"resume-no-reason":   "task resume " + taskID + " --yes",
		"cancel-no-reason":   "task cancel " + taskID + " --yes",
		"bad-api-url":        "node list --api-url localhost",
		"secret-in-api-url":  "node list --api-url http://alice:hunter2@localhost",
		"bad-limit":          "audit --limit -3",
		"bad-limit-json":     "node list --limit -3 -o json",
		"no-unit":            "node drain gpu-17 --deadline 5 --yes",
		"bad-number":         "node reissue-enrollment --selector a=b --max-parallel many",
		"bad-bool":           "node list --removed=maybe",
		"bad-state":          "node list --state active,foo",
		"bad-status":         "op list --status foo",
		"bad-action":         "op list --action explode",
		"bad-audit-action":   "audit --action nodes.explode",
		"register-missing":   "node register gpu-18",
		"deadline-no-drain":  "node retire gpu-17 --deadline 5m --yes",
		"bad-class":          "node register gpu-18 --class foo",
		"bad-role":           "admin token new alice --role king",
		"bad-since":          "audit --since yesterday",
		"audit-no-verify":    "audit --known-checkpoint c",
		"bad-instance-state": "instance list --state booting",
		"no-key-file":        "node provision gpu-17 --ssh-key none.pub",
		"bad-jsonpath":       "node list -o jsonpath=.nodes[",
		"unknown-topic":      "help node drian",
		"dev-argument":       "dev status now",
		"dev-flag":           "dev up --fast",
		"unknown-shell":      "completion csh",
		"reissue-no-node":    "node reissue-enrollment",
		"reissue-both":       "node reissue-enrollment gpu-17 --selector region=fra1 --out-dir x",
		"reissue-bundle":     "node reissue-enrollment --issuer CN=a --out-dir x --bundle y",
		"reissue-key":        "node reissue-enrollment --selector region=fra1 --out-dir x --idempotency-key k",
		"retry-both":         "op retry gpu-17 --action drain --reason TCK-1",
		"retry-phase":        "op retry --action drain --phase cordon --reason TCK-1",
		"retry-direct":       "op retry --action drain --reason TCK-1 --direct",
		"create-missing":     "node create vm --sku s",
		"create-count":       "node create vm --mode libvirt --sku s --region r --count 51",
		"create-parallel":    "node create vm --mode libvirt --sku s --region r --count 2 --max-parallel 0",
		"rehydrate-parallel": "node rehydrate gpu-17 --max-parallel 2",
		"reissue-no-dir":     "node reissue-enrollment --selector region=fra1",
		"reissue-dir":        "node reissue-enrollment gpu-17 --out-dir x",
		"reissue-parallel":   "node reissue-enrollment --selector region=fra1 --out-dir x --max-parallel 0",
		"reissue-selector":   "node reissue-enrollment --selector rack=7 --out-dir x",
		"reissue-state":      "node reissue-enrollment --selector state=happy --out-dir x",
		"json":               "node drain gpu-17 -o json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.golden("usage-"+name, strings.Fields(args)...)
			require.Empty(t, h.temporal.submitted)
			require.Empty(t, h.api.registered)
			require.Contains(t, h.err.String(), "--help")
		})
	}
}
