package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/text"
)

func newRecoveryPolicy(e *env) *cobra.Command {
	return newGroup("policy", "Show and set the policy of health recovery",
		"The policy says which faults are repaired, how, and what stops a repair. docs/recovery-policy.md\ndescribes its fields.",
		newRecoveryPolicyShow(e), newRecoveryPolicySet(e), newRecoveryPolicyHistory(e))
}

func newRecoveryPolicyShow(e *env) *cobra.Command {
	return e.command("show", "Show the policy in use",
		"Prints the policy in use, which gpuaas recovery policy set accepts after a change. With\n-o json or -o yaml the output has its version, its digest and who stored it, too.",
		"  gpuaas recovery policy show > policy.yaml\n  gpuaas recovery policy show -o json | jq .body.budgets",
		func(ctx context.Context, _ string) error {
			p, err := decode[record.Policy](e.api().GetRecoveryPolicy(ctx, nil))
			if err != nil {
				return err
			}
			document, err := yaml.JSONToYAML(p.Body)
			if err != nil {
				return schema.Wrap(schema.KindInternal, err, "the policy in the response cannot be parsed")
			}
			e.message("%s, mode %s, digest %s", policyText(p), p.Mode, p.Digest)
			return e.print(p, func(w io.Writer) { fmt.Fprintf(w, "%s%s\n%s", policyLine, p.Digest, document) }, strconv.FormatInt(p.Version, 10))
		})
}

func newRecoveryPolicySet(e *env) *cobra.Command {
	var file, expected string
	var r record.SetPolicy
	var c *cobra.Command
	c = e.command("set", "Store a policy",
		`Stores a policy from a file in YAML or JSON. A field that the file lacks has its default. The
policy is used from the next round on, within 30 seconds. A malformed policy is rejected with
the field and the fix, and the policy in use stays. Try a change before on what was recorded:
gpuaas recovery replay --policy FILE.

The first line of the output of gpuaas recovery policy show has the digest of that policy. If
another one is in use now, the command stores nothing and shows what changed since. For a
file without this line, give the digest with --expected-digest.`,
		"  gpuaas recovery policy set --file policy.yaml --dry-run\n  gpuaas recovery policy set --file policy.yaml --reason CHG-204",
		func(ctx context.Context, _ string) error {
			if err := checkReason(c.CommandPath(), r.Reason, !r.DryRun); err != nil {
				return err
			}
			policy, err := readPolicy(c.CommandPath(), "--file", file)
			if err != nil {
				return err
			}
			if err := warnOfCheckers(e.console, policy.Policy); err != nil {
				return err
			}
			now, err := decode[record.Policy](e.api().GetRecoveryPolicy(ctx, nil))
			if err != nil {
				return err
			}
			r.Body, r.ExpectedDigest = policy.body, cmp.Or(expected, policy.madeFrom)
			if r.ExpectedDigest == "" {
				e.message("warning: %s does not say from which policy it was made, so it replaces %s without a comparison", file, policyText(now))
				r.ExpectedDigest = now.Digest
			}
			p, err := decode[record.Policy](e.api().SetRecoveryPolicy(ctx, nil, r))
			if err != nil {
				return err
			}
			return printPolicySet(e.console, now, p, r.DryRun)
		})
	c.Flags().StringVar(&expected, "expected-digest", "", "store nothing if the policy in use has another digest (default that in the file)")
	c.Flags().StringVar(&file, "file", "", "the policy, in YAML or JSON (required)")
	c.Flags().StringVar(&r.Reason, "reason", "", "reason, kept in the audit trail (required without --dry-run)")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "check the policy and show what changes; store nothing")
	return c
}

// policyFile is a policy that was read from a file.
type policyFile struct {
	recovery.Policy
	body     json.RawMessage // as given, in JSON
	madeFrom string          // the digest of the policy that was shown, empty if the file does not have it
}

// policyLine begins the first line of a policy that gpuaas recovery policy show prints, before the digest.
const policyLine = "# The recovery policy with the digest "

// readPolicy reads and checks a policy in YAML or JSON.
func readPolicy(command, flag, path string) (policyFile, error) {
	if path == "" {
		return policyFile{}, usagef(command, "missing %s: name a file with a policy, for example the output of gpuaas recovery policy show", flag)
	}
	document, err := readBounded(path)
	if err != nil {
		return policyFile{}, usagef(command, "reading the policy: %s", err)
	}
	body, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return policyFile{}, usagef(command, "%s is neither YAML nor JSON: %s", path, err)
	}
	f := policyFile{body: body}
	first, _, _ := strings.Cut(string(document), "\n")
	if digest, ok := strings.CutPrefix(strings.TrimSpace(first), policyLine); ok && text.IsSHA256Hex(digest) {
		f.madeFrom = digest
	}
	f.Policy, err = recovery.DecodePolicy(body)
	return f, err
}

// readBounded reads a file that may have at most four times the size of a policy: YAML has blanks and comments.
func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	const most = 4 * recovery.MaxPolicy
	document, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && len(document) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return document, err
}

// warnOfCheckers warns of names that no checker has. They are allowed, because a newer agent may have
// the checker.
func warnOfCheckers(e *console, p recovery.Policy) error {
	known := []string{health.CheckerHeartbeat}
	onNode, err := host.Checkers()
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "reading the names of the checkers")
	}
	for _, c := range onNode {
		known = append(known, c.Name())
	}
	for _, c := range health.NewDefaultCheckers() {
		known = append(known, c.Name())
	}
	slices.Sort(known)
	for _, field := range []struct {
		name   string
		values []string
	}{{"disabled_checkers", p.DisabledCheckers}, {"thresholds", slices.Sorted(maps.Keys(p.Thresholds))}} {
		for _, name := range field.values {
			if !slices.Contains(known, name) {
				e.message("warning: %s names %q, which is no known checker, so it has no effect; the checkers are %s", field.name, clean(name), strings.Join(slices.Compact(known), ", "))
			}
		}
	}
	return nil
}

func printPolicySet(e *console, now, p record.Policy, dryRun bool) error {
	switch {
	case dryRun:
		e.message("the policy is valid; nothing was stored")
	case p.Version == now.Version:
		e.message("this policy is in use; nothing was stored")
	}
	if now.Mode != recovery.ModeArmed && p.Mode == recovery.ModeArmed {
		e.message("warning: this policy arms health recovery: repairs start in the first round after it is stored; " +
			"gpuaas recovery arm shows which, and asks, so store a policy in the mode monitor first")
	}
	return e.print(p, func(w io.Writer) {
		if p.Version != 0 {
			fields(w, "Policy:", policyText(p))
		}
		fields(w, "Mode:", string(p.Mode), "Digest:", p.Digest)
		for _, line := range recovery.Differences(now.Body, p.Body) {
			fmt.Fprintln(w, "  "+clean(line))
		}
	}, strconv.FormatInt(p.Version, 10))
}

func printPolicyChange(e *console, p record.Policy) error {
	return e.print(p, func(w io.Writer) { fields(w, "Mode:", string(p.Mode), "Policy:", policyText(p)) }, strconv.FormatInt(p.Version, 10))
}

func newRecoveryPolicyHistory(e *env) *cobra.Command {
	return e.command("history", "List the stored policies",
		"Lists the stored policies, newest first: who stored them, when and why.",
		"  gpuaas recovery policy history\n  gpuaas recovery policy history -o json",
		func(ctx context.Context, _ string) error {
			all, err := pages(0, func(size *int, token *string) ([]record.Policy, string, error) {
				list, err := decode[record.Policies](e.api().ListRecoveryPolicies(ctx, &adminclient.ListRecoveryPoliciesParams{Limit: size, PageToken: token}))
				return list.Policies, list.NextPageToken, err
			})
			if err != nil {
				return err
			}
			return printList(e.console, listing[record.Policy]{
				object: record.Policies{Policies: all}, rows: all, empty: "no policy is stored; the default policy is in use: gpuaas recovery policy show",
				header: []string{"VERSION", "TIME", "MODE", "BY", "REASON", "DIGEST"}, wide: 1,
				cells: func(p record.Policy) []string {
					return []string{strconv.FormatInt(p.Version, 10), p.At.UTC().Format(time.RFC3339), string(p.Mode), p.Actor, clean(p.Reason), p.Digest}
				},
				name: func(p record.Policy) string { return strconv.FormatInt(p.Version, 10) },
			})
		})
}
