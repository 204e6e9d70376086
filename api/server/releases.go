package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// releases is the folder of the agent's releases, which gpuaas admin sign-agent fills: for
// each one the signed document (trust.ReleaseFile), and the binary under the hex SHA-256 of its
// content. It is read at each use, so that a release can be added at any time. A binary that is
// not complete is not there.
type releases struct {
	dir   string
	keys  []trust.VerifierKey
	files *checkedFiles
}

// documentSuffix ends the names of signed documents.
const documentSuffix = ".json"

// checkReleases checks the settings of the agent's releases.
func (c *config) checkReleases(f *daemon.Faults) {
	c.ReleaseKeys = strings.ReplaceAll(c.ReleaseKeys, " ", "")
	keys, err := trust.ParseReleaseKeys(c.ReleaseKeys)
	f.Check(err != nil, "GPUAAS_RELEASE_PUBKEYS: %v", err)
	f.Check(c.Releases != "" && c.ReleaseKeys == "", "GPUAAS_AGENT_RELEASES needs GPUAAS_RELEASE_PUBKEYS")
	if c.Releases != "" {
		c.releases = releases{c.Releases, keys, &checkedFiles{sums: map[string]checkedFile{}}}
	}
}

// document returns the signed document of a version for an architecture (GOARCH; empty if it is not
// known). KindNotFound if there is none, KindInvalidRequest if no release key signed it.
func (r releases) document(version, arch string) (string, error) {
	if r.dir == "" {
		return "", schema.NewError(schema.KindInvalidRequest, "no releases of the agent are configured").
			WithReason("no_releases").WithNext("set GPUAAS_AGENT_RELEASES and GPUAAS_RELEASE_PUBKEYS of gpuaas-api")
	}
	if !trust.ValidVersion(version) {
		return "", schema.NewError(schema.KindInvalidRequest, "%.64q is not the version of a release", version).WithReason("bad_version")
	}
	if arch != trust.ArchARM64 { // which a node reported: no other text is shown
		arch = trust.ArchAMD64
	}
	text, err := os.ReadFile(filepath.Join(r.dir, trust.ReleaseFile(version, arch)))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", schema.NewError(schema.KindNotFound, "gpuaas-api has no release %s of the agent for %s; it has %s", version, arch, r.list()).
			WithReason("no_release").WithNext("put the signed release into the folder GPUAAS_AGENT_RELEASES of each gpuaas-api: gpuaas admin sign-agent --help")
	case err != nil:
		return "", schema.Wrap(schema.KindServiceUnavailable, err, "reading release %s", version)
	}
	signed, err := trust.OpenRelease(text, r.keys)
	if err == nil && signed.Version != version {
		err = schema.NewError(schema.KindInvalidRequest, "it is that of version %s", signed.Version)
	}
	if err == nil {
		var p nodeapi.Package
		if p, err = r.files.find(r.dir, signed.SHA256); err == nil && p.Size != signed.Size {
			err = schema.NewError(schema.KindInvalidRequest, "its binary has %d bytes, and the document says %d", p.Size, signed.Size)
		}
	}
	if err != nil {
		return "", schema.Wrap(schema.KindInvalidRequest, err, "release %s cannot be used: %s", version, schema.AsError(err).Message).
			WithReason("bad_release").WithNext("copy its files again, the binary first, or sign it again: gpuaas admin sign-agent --help")
	}
	var compact bytes.Buffer
	err = json.Compact(&compact, text)
	return compact.String(), err
}

// list names the versions that there are.
func (r releases) list() string {
	files, _ := filepath.Glob(filepath.Join(r.dir, "*"+documentSuffix)) // fails only for a malformed pattern
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), documentSuffix))
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(names[max(0, len(names)-maxListed):], ", ")
}

// maxListed bounds the versions in an error.
const maxListed = 10

// binary returns the binary of a digest of the form sha256:hex; ok is false if there is none.
func (r releases) binary(digest string) (p nodeapi.Package, ok bool) {
	if r.dir == "" || !digestForm.MatchString(digest) {
		return p, false
	}
	p, err := r.files.find(r.dir, strings.TrimPrefix(digest, "sha256:"))
	return p, err == nil
}

// checkedFiles holds the digests of files that do not change. It is safe for concurrent use.
type checkedFiles struct {
	mu   sync.Mutex
	sums map[string]checkedFile // by path
}

// checkedFile is a file as it was when its digest was computed.
type checkedFile struct {
	digest  string // sha256:hex
	size    int64
	changed time.Time
}

// find returns the file whose name and SHA-256 are sum. It reads a file again only when its size
// or its time has changed.
func (c *checkedFiles) find(dir, sum string) (p nodeapi.Package, err error) {
	path := filepath.Join(dir, sum)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p, schema.NewError(schema.KindInvalidRequest, "its binary %s is missing", sum)
	case err != nil:
		return p, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.sums[path]
	if known.size != info.Size() || !known.changed.Equal(info.ModTime()) {
		known = checkedFile{size: info.Size(), changed: info.ModTime()}
		if known.digest, _, err = digestOf(path); err != nil {
			return p, err
		}
		c.sums[path] = known
	}
	if known.digest != "sha256:"+sum {
		return p, schema.NewError(schema.KindInvalidRequest, "its binary %s is not complete: its %d bytes have another SHA-256", sum, info.Size())
	}
	return nodeapi.Package{Path: path, Size: info.Size()}, nil
}
