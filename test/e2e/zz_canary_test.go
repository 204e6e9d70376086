package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

// secretForm matches secrets that the tests cannot collect, such as a process's Vault
// token.
var secretForm = regexp.MustCompile(`hv[sbr]\.[A-Za-z0-9_-]{20,}|PRIVATE KEY-----|` + regexp.QuoteMeta(trust.TokenPrefix) + `[0-9a-f-]{8,}`)

// places are the texts that must not contain a secret, by name.
func places(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	logs, err := filepath.Glob(filepath.Join(shared.Dir, "log", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	stored, err := filepath.Glob(filepath.Join(shared.Dir, "temporal.db*"))
	require.NoError(t, err)
	for _, f := range append(logs, stored...) {
		raw, err := os.ReadFile(f)
		require.NoError(t, err)
		out[f] = raw
	}
	arguments, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range arguments {
		if raw, err := os.ReadFile(f); err == nil { // processes start and exit
			out[f] = raw
		}
	}
	out["spans"] = shared.collector.Raw()
	out["database"] = dump(t)
	out["temporal histories"], out["temporal visibility"] = histories(t)
	return out
}

// dump reads every row of every table as text.
func dump(t *testing.T) []byte {
	t.Helper()
	conn := harness.Connect(t.Context(), t, shared.Stack)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	rows, err := conn.Query(t.Context(), `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, tables, "nodes")
	var out bytes.Buffer
	for _, table := range tables {
		rows, err := conn.Query(t.Context(), "SELECT t::text FROM "+pgx.Identifier{table}.Sanitize()+" t")
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		out.WriteString(strings.Join(lines, "\n"))
	}
	return out.Bytes()
}

// histories exports all runs and lists of Temporal.
func histories(t *testing.T) (runs, lists []byte) {
	t.Helper()
	c := dial(t)
	var out, list bytes.Buffer
	var next []byte
	for {
		page, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{NextPageToken: next})
		require.NoError(t, err)
		for _, e := range page.GetExecutions() {
			write(t, &list, e)
			write(t, &out, history(t, c, e.GetExecution().GetWorkflowId(), e.GetExecution().GetRunId()))
		}
		if next = page.GetNextPageToken(); len(next) == 0 {
			return out.Bytes(), list.Bytes()
		}
	}
}

// write writes a message as bytes and as JSON, whose payloads are base64.
func write(t *testing.T, out *bytes.Buffer, m proto.Message) {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	out.Write(raw)
	text, err := protojson.Marshal(m)
	require.NoError(t, err)
	out.Write(text)
}

// TestNoSecretLeaks searches every history, list, log, table and process argument for
// every token, key and password of the stack, its agents and the other tests. The file
// name makes it run last, so that it covers the other tests.
func TestNoSecretLeaks(t *testing.T) {
	nodeHost, id := enrolled(t, "canary")
	act(t, "node", "drain", nodeHost, "--yes")
	refusedWithToken(t, nodeHost)
	shared.secrets.collect(shared.Dir)
	known := shared.secrets.all()
	kinds := map[string]int{}
	for _, what := range known {
		kinds[what]++
	}
	t.Logf("searched for: %v", kinds)
	for _, what := range []string{"token", "token's secret", "private key", "private key's number", "private key's seed",
		"admin-token", "postgres-password", "vault-root-token", "vault-keys.json unseal_key", "api-secret-id", "worker-secret-id"} {
		require.Positive(t, kinds[what], "%s is not searched for", what)
	}
	n := needlesOf(known)
	searched := places(t)
	require.Contains(t, string(searched["temporal histories"]), id, "the histories are not searched")
	require.Contains(t, string(searched["spans"]), "RunActivity:ClaimNode", "the spans are not searched")
	for place, text := range searched {
		require.Empty(t, n.find(text), place)
		require.Empty(t, secretForm.FindAllIndex(text, -1), place)
	}
	t.Run("a planted leak is found", func(t *testing.T) { findsEveryForm(t, n, known) })
}

// refusedWithToken passes the API's token in a public field: the API rejects it and does
// not repeat it.
func refusedWithToken(t *testing.T, nodeHost string) {
	t.Helper()
	r := run(t, "node", "reactivate", nodeHost, "--no-wait", "--reason", "see "+shared.Getenv("GPUAAS_API_TOKEN"), "-o", "json")
	require.NotZero(t, r.code)
	require.NotContains(t, r.stdout+r.stderr, shared.Getenv("GPUAAS_API_TOKEN"))
	require.Equal(t, lifecycle.NodeDrained, show(t, nodeHost).State)
}

// findsEveryForm plants each secret in each encoding.
func findsEveryForm(t *testing.T, n needles, known map[string]string) {
	t.Helper()
	for secret, what := range known {
		for form, leak := range planted([]byte(secret)) {
			require.NotEmpty(t, n.find(leak), "%s as %s", what, form)
		}
	}
}

func planted(secret []byte) map[string][]byte {
	out := map[string][]byte{}
	for form, text := range forms(secret) {
		out[form] = append(append([]byte("x"), text...), 'y')
	}
	for _, before := range []string{"", "a", "ab", "abc"} {
		around := append([]byte(before), append(bytes.Clone(secret), "xyz"...)...)
		out["std after "+before] = []byte(base64.StdEncoding.EncodeToString(around))
		out["url after "+before] = []byte(base64.RawURLEncoding.EncodeToString(around))
		out["hex after "+before] = []byte(hex.EncodeToString(around))
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(append([]byte("level=info "), secret...)) // a buffer takes all
	_ = w.Close()
	out["gzip"] = append([]byte("before "), append(packed.Bytes(), " after"...)...)
	return out
}
