package oasdiff

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// check compares the document with a base and returns the output and whether it is accepted.
func check(t *testing.T, base, allowed string) (string, bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "base.yaml")
	write(t, file, base)
	c := exec.CommandContext(t.Context(), "sh", "tools/oasdiff/check.sh", file)
	c.Dir, c.Env = root, os.Environ()
	if allowed != "" {
		list := filepath.Join(t.TempDir(), "allowed.txt")
		write(t, list, allowed)
		c.Env = append(c.Env, "ALLOWED="+list)
	}
	out, err := c.CombinedOutput()
	if _, failed := err.(*exec.ExitError); err != nil && !failed {
		t.Fatal(err)
	}
	return string(out), err == nil
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// planted adds the path /api/v1/admin/planted to the document.
func planted(document string) string {
	const paths = "paths:\n"
	return strings.Replace(document, paths, paths+`  /api/v1/admin/planted:
    get:
      operationId: planted
      responses:
        '200': {description: Planted.}
`, 1)
}

// The document is compared with bases that had more, or demanded less.
func TestCheck(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "schema/openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	const request = "      required: [host, sku, region_code]\n"
	for name, c := range map[string]struct{ base, allowed, finds string }{
		"no change":            {base: document},
		"a removed path":       {base: planted(document), finds: "/api/v1/admin/planted"},
		"an intended removal":  {base: planted(document), allowed: "GET /api/v1/admin/planted api path removed without deprecation\n"},
		"a new required field": {base: strings.Replace(document, request, "      required: [host, sku]\n", 1), finds: "region_code"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.finds != "" && c.base == document {
				t.Fatal("nothing is planted")
			}
			out, accepted := check(t, c.base, c.allowed)
			if accepted != (c.finds == "") || !strings.Contains(out, c.finds) {
				t.Fatalf("accepted: %v\n%s", accepted, out)
			}
		})
	}
}
