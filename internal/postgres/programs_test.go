package postgres

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// rejectingServer rejects the password of each login.
func rejectingServer(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			rejectLogin(conn)
		}
	}()
	return "postgres://u:sesame@" + l.Addr().String() + "/d?sslmode=disable"
}

func rejectLogin(conn net.Conn) {
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationCleartextPassword{})
	if backend.Flush() != nil || backend.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
		return
	}
	if _, err := backend.Receive(); err != nil {
		return
	}
	backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "28P01", Message: `password authentication failed for user "u"`})
	_ = backend.Flush() // the client may be gone
}

// A wrong password is named as such, by the driver and by the programs, and is in no error.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	url := rejectingServer(t)
	_, err := Open(t.Context(), Config{URL: url})
	require.ErrorContains(t, err, "rejects the role or its password")
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	_, err = NewScratch(t.Context(), url)
	require.ErrorContains(t, err, "rejects the role or its password")

	need.Program(t, "pg_dump", "install the client programs of Postgres")
	file := filepath.Join(t.TempDir(), "dump")
	err = Dump(t.Context(), url, file, "")
	require.ErrorContains(t, err, "password authentication failed")
	require.Contains(t, schema.AsError(err).Next, "PGPASSFILE")
	require.NotContains(t, err.Error(), "sesame")
	require.NoFileExists(t, file)
}

// A program gets the password in its environment, not as an argument, and no setting that is not
// libpq's.
func TestProgramArguments(t *testing.T) {
	folder := t.TempDir()
	script := "#!/bin/sh\necho \"$@ password=$PGPASSWORD url=$GPUAAS_DATABASE_URL\" > " + folder + "/said\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "pg_restore"), []byte(script), 0o700))
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	t.Setenv("GPUAAS_DATABASE_URL", "secret")
	require.NoError(t, Restore(t.Context(), "postgres://u:sesame@db1:1,db2:2/d?sslmode=require&pool_max_conns=4&target_session_attrs=read-write", "file"))
	said, err := os.ReadFile(filepath.Join(folder, "said"))
	require.NoError(t, err)
	require.Equal(t, "--dbname=postgres://u@db1:1,db2:2/d?sslmode=require&target_session_attrs=read-write"+
		" --single-transaction --no-owner --no-privileges --no-password file password=sesame url=\n", string(said))
	for _, url := range []string{"host=db user=u password=sesame", "postgres://u:ses%ame@h/d"} {
		err := Restore(t.Context(), url, "file")
		require.ErrorContains(t, err, "malformed")
		require.NotContains(t, err.Error(), "ame")
	}
}

// A server that cannot be found is a fault of the server or of its URL, not of the program.
func TestUnknownServer(t *testing.T) {
	t.Parallel()
	need.Program(t, "pg_dump", "install the client programs of Postgres")
	err := Dump(t.Context(), "postgres://u@database.invalid/d", filepath.Join(t.TempDir(), "d"), "")
	require.ErrorContains(t, err, "pg_dump: could not translate host name", "without the name of the program twice")
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.Contains(t, schema.AsError(err).Next, "the database URL")
}
