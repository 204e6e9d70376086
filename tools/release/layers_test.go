package main

import (
	"archive/tar"
	"encoding/pem"
	"errors"
	"io"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// filesOf returns the headers and the contents of a layer's files by their names.
func filesOf(t *testing.T, layer v1.Layer) (headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	plain, err := layer.Uncompressed()
	require.NoError(t, err)
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for archive := tar.NewReader(plain); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		require.NoError(t, err)
		headers[h.Name] = h
		contents[h.Name], err = io.ReadAll(archive)
		require.NoError(t, err)
	}
}

// TestBaseLayer: images have a folder for temporary files, and the CA certificates without those that are
// trusted only in part.
func TestBaseLayer(t *testing.T) {
	t.Parallel()
	layer, err := newTestRelease(t).version.baseLayer()
	require.NoError(t, err)
	headers, contents := filesOf(t, layer)
	require.EqualValues(t, 0o1777, headers["tmp/"].Mode)
	require.Equal(t, nonroot, headers["home/nonroot/"].Uid)
	want, have := 0, 0
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			want++
		}
	}
	rest := contents["etc/ssl/certs/ca-certificates.crt"]
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		have++
	}
	require.Equal(t, want, have)
	require.Greater(t, have, 100)
}

// TestFoldersOfImages: the user of an image owns its folders, so that a new volume of Docker is writable.
func TestFoldersOfImages(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	base, err := r.version.baseLayer()
	require.NoError(t, err)
	for _, i := range images() {
		built, err := r.imageFor(i, r.platforms[0], base)
		require.NoError(t, err)
		layers, err := built.Layers()
		require.NoError(t, err)
		headers, _ := filesOf(t, layers[1])
		require.Len(t, headers, 3+len(i.folders))
		require.Contains(t, headers, "usr/share/doc/gpuaas/LICENSE")
		require.Contains(t, headers, "usr/share/doc/gpuaas/"+noticesFile)
		for _, f := range i.folders {
			require.Equal(t, []any{nonroot, int64(0o700)}, []any{headers[f].Uid, headers[f].Mode}, f)
		}
	}
}

// TestScriptsOfPackages: each package of a service has its scripts, and the time of the commit.
func TestScriptsOfPackages(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	for _, name := range packageNames() {
		info, err := r.packageInfo(r.platforms[0], name, "deb")
		require.NoError(t, err)
		require.Equal(t, r.version.Time, info.MTime)
		scripts := []string{info.Scripts.PostInstall, info.Scripts.PreRemove, info.Scripts.PostRemove}
		if name == "gpuaas" {
			require.Equal(t, []string{"", "", ""}, scripts)
			continue
		}
		for _, s := range scripts {
			require.NotEmpty(t, s, name)
		}
	}
}

// TestStages: stages run in the order of a release, whatever the order of the arguments, and an unknown one
// is an error.
func TestStages(t *testing.T) {
	t.Parallel()
	stages, err := chosen([]string{"sbom", "programs"})
	require.NoError(t, err)
	require.Len(t, stages, 2)
	require.Equal(t, []string{"programs", "sbom"}, []string{stages[0].name, stages[1].name})
	_, err = chosen([]string{"programs", "packges"})
	require.ErrorContains(t, err, `unknown stage "packges"`)
	all, err := chosen(nil)
	require.NoError(t, err)
	require.Len(t, all, len(stageNames()))
}
