package pgtest_test

import (
	"bufio"
	"context"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// victim makes the test binary run as a process that is killed.
const victim = "GPUAAS_PGTEST_VICTIM"

func TestNewDatabases(t *testing.T) {
	t.Parallel()
	if os.Getenv(victim) != "" {
		return // in the process that is killed
	}
	migrate := func(ctx context.Context, dsn string) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE TABLE migrated (n int)")
		return err
	}
	first, second, empty := pgtest.New(t, migrate), pgtest.New(t, migrate), pgtest.Empty(t)
	require.NotEqual(t, first, second)
	for dsn, want := range map[string]int{first: 1, second: 1, empty: 0} {
		conn, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		var tables int
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE tablename = 'migrated'").Scan(&tables))
		require.Equal(t, want, tables)
		require.NoError(t, conn.Close(t.Context()))
	}
}

// TestVictim, in the process that TestKilledTestLeavesNothing starts, starts a server, prints its address
// and waits until it is killed.
func TestVictim(t *testing.T) {
	if os.Getenv(victim) == "" {
		return
	}
	dsn := pgtest.Empty(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	var dir string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&dir))
	_, err = os.Stdout.WriteString("\nvictim " + dsn + " " + dir + "\n")
	require.NoError(t, err)
	<-time.After(harness.Timeout) // it is killed long before
}

func TestKilledTestLeavesNothing(t *testing.T) {
	t.Parallel()
	if os.Getenv(victim) != "" {
		return // in the process that is killed
	}
	pgtest.Empty(t) // skips if there is no Postgres
	cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$", "-test.v")
	cmd.Env = append(os.Environ(), victim+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var words []string
	for lines := bufio.NewScanner(out); words == nil && lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "victim "); ok {
			words = strings.Fields(rest)
		}
	}
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Len(t, words, 2, "the server's address and folder")
	u, err := url.Parse(words[0])
	require.NoError(t, err)
	harness.Eventually(t, "server and files are removed with the process", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			conn.Close()
		}
		_, gone := os.Stat(filepath.Dir(words[1]))
		return err != nil && os.IsNotExist(gone)
	})
}
