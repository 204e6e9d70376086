package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/gpuaas/gpuaas/schema"
)

// secrets are what must never leave the place it is kept, by name.
type secrets map[string][]byte

// collect reads every secret of the stack and of its agents.
func collect(t *testing.T) secrets {
	t.Helper()
	found := secrets{}
	for _, dir := range []string{"secrets", "agents"} {
		err := filepath.WalkDir(filepath.Join(shared.dir, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found.add(dir, path, raw)
			return nil
		})
		require.NoError(t, err)
	}
	require.NotEmpty(t, found)
	return found
}

func (s secrets) add(dir, path string, raw []byte) {
	name := filepath.Base(path)
	switch {
	case strings.Contains(name, "key") && bytes.Contains(raw, []byte("PRIVATE KEY")):
		block, _ := pem.Decode(raw)
		s[path] = block.Bytes
	case dir == "agents":
		if m := tokenLine.FindSubmatch(raw); m != nil {
			s[path] = m[1]
		}
	case strings.HasSuffix(name, "secret-id"), name == "admin-token", name == "vault-root-token", strings.Contains(name, "password"):
		s[path] = bytes.TrimSpace(raw)
	case name == "database-url":
		if u, err := url.Parse(strings.TrimSpace(string(raw))); err == nil {
			if password, has := u.User.Password(); has {
				s[path] = []byte(password)
			}
		}
	}
}

// find names the secrets that text holds, in any of the forms a leak takes.
func (s secrets) find(text []byte) []string {
	var hits []string
	for name, secret := range s {
		for form, needle := range map[string][]byte{
			"raw":    secret,
			"base64": []byte(strings.TrimRight(base64.StdEncoding.EncodeToString(secret), "=")),
			"url":    []byte(base64.RawURLEncoding.EncodeToString(secret)),
			"hex":    []byte(hex.EncodeToString(secret)),
		} {
			if bytes.Contains(text, needle) {
				hits = append(hits, name+" ("+form+")")
			}
		}
	}
	return hits
}

// places are the texts in which a secret must not be, by name.
func places(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	logs, err := filepath.Glob(filepath.Join(shared.dir, "log", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	for _, f := range logs {
		raw, err := os.ReadFile(f)
		require.NoError(t, err)
		out[f] = raw
	}
	arguments, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range arguments {
		if raw, err := os.ReadFile(f); err == nil { // processes come and go
			out[f] = raw
		}
	}
	out["database"] = dump(t)
	out["temporal histories"] = histories(t)
	return out
}

// dump reads every row of every table as text.
func dump(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(shared.dir, "secrets", "database-url"))
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), strings.TrimSpace(string(raw)))
	require.NoError(t, err)
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

// histories exports every run that Temporal keeps.
func histories(t *testing.T) []byte {
	t.Helper()
	c := dial(t)
	var out bytes.Buffer
	var next []byte
	for {
		page, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{NextPageToken: next})
		require.NoError(t, err)
		for _, e := range page.GetExecutions() {
			out.WriteString(e.String())
			h := history(t, c, e.GetExecution().GetWorkflowId(), e.GetExecution().GetRunId())
			for _, event := range h.GetEvents() {
				out.WriteString(event.String()) // payloads as bytes
			}
			raw, err := protojson.Marshal(h) // payloads as base64
			require.NoError(t, err)
			out.Write(raw)
		}
		if next = page.GetNextPageToken(); len(next) == 0 {
			return out.Bytes()
		}
	}
}

// TestNoSecretLeaves looks for every token, key and password of the stack in
// every history, log, table and process argument. It runs after the others of
// this package by its file's name, so that all of them left their traces.
func TestNoSecretLeaves(t *testing.T) {
	nodeHost, id := enrolled(t, "canary")
	act(t, "node", "drain", nodeHost, "--yes")
	s := collect(t)
	require.Contains(t, strings.Join(keys(s), " "), nodeHost)
	for place, text := range places(t) {
		require.Empty(t, s.find(text), place)
	}

	t.Run("a planted leak is found", func(t *testing.T) {
		token := bundleToken(t, nodeHost)
		require.True(t, strings.HasPrefix(token, schema.TokenPrefix))
		for form, leak := range map[string]string{
			"raw": "msg=" + token, "base64": base64.StdEncoding.EncodeToString([]byte(token)), "hex": hex.EncodeToString([]byte(token)),
		} {
			require.NotEmpty(t, s.find([]byte("x"+leak+"y")), form)
		}
		require.Contains(t, string(histories(t)), id, "the histories are not searched")
	})
}

func keys(s secrets) []string {
	var out []string
	for k := range s {
		out = append(out, k)
	}
	return out
}
