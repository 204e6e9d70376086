package server

import (
	"crypto/ed25519"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// releaseFolder is a folder of releases and the key that signs them.
type releaseFolder struct {
	releases
	key ed25519.PrivateKey
}

func newReleases(t *testing.T) releaseFolder {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	c := config{Releases: t.TempDir(), ReleaseKeys: base64.StdEncoding.EncodeToString(public)}
	c.checkReleases(&daemon.Faults{})
	require.Len(t, c.releases.keys, 1)
	return releaseFolder{c.releases, private}
}

// add signs a binary as a version, and stores the document under a name.
func (r releaseFolder) add(t *testing.T, version, name string, binary []byte) (digest string) {
	t.Helper()
	sum := schema.SHA256Hex(binary)
	document, err := trust.SignRelease(trust.Release{V: 1, Version: version, Size: int64(len(binary)), SHA256: sum}, r.key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, sum), binary, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, name+documentSuffix), append(document, '\n'), 0o600))
	return "sha256:" + sum
}

func TestReleases(t *testing.T) {
	t.Parallel()
	r := newReleases(t)
	digest := r.add(t, "v2.0.0", "v2.0.0", []byte("two"))
	document, err := r.document("v2.0.0", "amd64")
	require.NoError(t, err)
	signed, err := trust.OpenRelease([]byte(document), r.keys)
	require.NoError(t, err)
	require.Equal(t, digest, "sha256:"+signed.SHA256)
	p, ok := r.binary(digest)
	require.True(t, ok)
	require.Equal(t, int64(3), p.Size)
	for _, none := range []string{"sha256:" + schema.SHA256Hex(nil), "sha256:../v2.0.0.json", "v2.0.0.json", ""} {
		_, ok := r.binary(none)
		require.False(t, ok, none)
	}

	other := newReleases(t)
	other.dir = r.dir
	other.add(t, "v3.0.0", "v3.0.0", []byte("three"))
	r.add(t, "v4.0.0", "v4.1.0", []byte("four"))
	gone := r.add(t, "v5.0.0", "v5.0.0", []byte("five"))
	require.NoError(t, os.Remove(filepath.Join(r.dir, gone[len("sha256:"):])))
	for version, reason := range map[string]string{
		"v3.0.0": "bad_release", // another key signed it
		"v4.1.0": "bad_release", // it is another version
		"v5.0.0": "bad_release", // the binary is missing
		"v9.0.0": "no_release", "../x": "bad_version", "": "bad_version",
	} {
		_, err := r.document(version, "")
		require.Equal(t, reason, schema.AsError(err).Reason, "%s: %v", version, err)
	}
	_, err = r.document("v5.0.0", "")
	require.ErrorContains(t, err, "release v5.0.0 cannot be used: its binary "+gone[len("sha256:"):]+" is missing")
	_, err = r.document("v9.0.0", "arm64")
	require.ErrorContains(t, err, "no release v9.0.0 of the agent for arm64; it has v2.0.0, v3.0.0, v4.1.0, v5.0.0")
	require.Contains(t, schema.AsError(err).Next, "GPUAAS_AGENT_RELEASES")
	_, err = releases{}.document("v2.0.0", "")
	require.Equal(t, "no_releases", schema.AsError(err).Reason)
}

// TestReleaseOfAnArchitecture: a version has a document for each architecture, and a node gets that of its own.
func TestReleaseOfAnArchitecture(t *testing.T) {
	t.Parallel()
	r := newReleases(t)
	r.add(t, "v2.0.0", "v2.0.0", []byte("two"))
	_, err := r.document("v2.0.0", "arm64")
	require.Equal(t, "no_release", schema.AsError(err).Reason, "that of amd64 is not for it")
	digest := r.add(t, "v2.0.0", "v2.0.0@arm64", []byte("two for arm64"))
	for arch, want := range map[string]string{"arm64": digest[len("sha256:"):], "amd64": schema.SHA256Hex([]byte("two")), "": schema.SHA256Hex([]byte("two")),
		"../arm64": schema.SHA256Hex([]byte("two"))} {
		document, err := r.document("v2.0.0", arch)
		require.NoError(t, err, arch)
		signed, err := trust.OpenRelease([]byte(document), r.keys)
		require.NoError(t, err)
		require.Equal(t, want, signed.SHA256, arch)
	}
	_, err = r.document("v9.0.0", "say, gpuaas node remove")
	require.ErrorContains(t, err, "no release v9.0.0 of the agent for amd64;")
	_, err = r.document("v2.0.0@arm64", "")
	require.Equal(t, "bad_version", schema.AsError(err).Reason)
}

// TestHalfCopiedRelease: a release is offered once its binary is complete. A binary that did not
// change is read once.
func TestHalfCopiedRelease(t *testing.T) {
	t.Parallel()
	r := newReleases(t)
	digest := r.add(t, "v2.0.0", "v2.0.0", []byte("two"))
	path := filepath.Join(r.dir, digest[len("sha256:"):])
	offered := func() bool {
		_, err := r.document("v2.0.0", "amd64")
		_, ok := r.binary(digest)
		require.Equal(t, ok, err == nil, "%v", err)
		require.True(t, ok || schema.AsError(err).Reason == "bad_release", "%v", err)
		return ok
	}
	require.True(t, offered())
	for _, part := range []string{"t", "tw", "twi"} { // the last one has the right size
		require.NoError(t, os.WriteFile(path, []byte(part), 0o600))
		require.False(t, offered(), part)
	}
	require.NoError(t, os.WriteFile(path, []byte("two"), 0o600))
	require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(1, 0)))
	require.True(t, offered())

	require.NoError(t, os.WriteFile(path, []byte("twi"), 0o600))
	require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(1, 0)))
	require.True(t, offered(), "it was not read again")

	document, err := trust.SignRelease(trust.Release{V: 1, Version: "v3.0.0", Size: 4, SHA256: digest[len("sha256:"):]}, r.key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "v3.0.0"+documentSuffix), document, 0o600))
	_, err = r.document("v3.0.0", "")
	require.ErrorContains(t, err, "its binary has 3 bytes, and the document says 4")
}

// TestUpgradeAgent: the operation names the release, and the node API serves its binary.
func TestUpgradeAgent(t *testing.T) {
	c := newCluster(t)
	r := newReleases(t)
	c.releases = r.releases
	digest := r.add(t, "v2.0.0", "v2.0.0", []byte("two"))
	api := c.replica()
	m := api.enrolled()
	assert.Equal(t, http.StatusNotFound, api.ask(http.MethodPost, "/nodes/"+m.id+"/upgrade-agent", `{"options":{"agent_version":"v3.0.0"}}`).status)
	var started struct{ Operation lifecycle.Operation }
	a := api.ask(http.MethodPost, "/nodes/"+m.id+"/upgrade-agent", `{"options":{"agent_version":"v2.0.0","downgrade":true}}`)
	require.Equal(t, http.StatusAccepted, a.status, string(a.body))
	a.into(t, &started)
	require.Equal(t, lifecycle.Options{AgentVersion: "v2.0.0", Downgrade: true}, started.Operation.Options)
	got := api.call(api.client(nil), http.MethodGet, api.node+"/internal/v1/packages/"+digest, nil)
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, "two", string(got.body))
}
