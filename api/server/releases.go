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

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// releases is the folder of the agent's releases, which gpuaas admin sign-agent fills: for
// each one the signed document VERSION.json, and the binary under the hex SHA-256 of its
// content. It is read at each use, so that a release can be added at any time.
type releases struct {
	dir  string
	keys []trust.VerifierKey
}

// documentSuffix ends the names of signed documents.
const documentSuffix = ".json"

// checkReleases checks the settings of the agent's releases.
func (c *config) checkReleases(f *daemon.Faults) {
	c.ReleaseKeys = strings.ReplaceAll(c.ReleaseKeys, " ", "")
	keys, err := trust.ParseReleaseKeys(c.ReleaseKeys)
	f.Check(err != nil, "GPUAAS_RELEASE_PUBKEYS: %v", err)
	f.Check(c.Releases != "" && c.ReleaseKeys == "", "GPUAAS_AGENT_RELEASES needs GPUAAS_RELEASE_PUBKEYS")
	c.releases = releases{c.Releases, keys}
}

// document returns the signed document of a version. KindNotFound if there is none,
// KindInvalidRequest if no release key signed it.
func (r releases) document(version string) (string, error) {
	if r.dir == "" {
		return "", schema.NewError(schema.KindInvalidRequest, "no releases of the agent are configured").
			WithReason("no_releases").WithNext("set GPUAAS_AGENT_RELEASES and GPUAAS_RELEASE_PUBKEYS of gpuaas-api")
	}
	if !trust.ValidVersion(version) {
		return "", schema.NewError(schema.KindInvalidRequest, "%.64q is not the version of a release", version).WithReason("bad_version")
	}
	text, err := os.ReadFile(filepath.Join(r.dir, version+documentSuffix))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", schema.NewError(schema.KindNotFound, "there is no release %s of the agent; there is %s", version, r.list()).WithReason("no_release")
	case err != nil:
		return "", schema.Wrap(schema.KindServiceUnavailable, err, "reading release %s", version)
	}
	signed, err := trust.OpenRelease(text, r.keys)
	if err == nil && signed.Version != version {
		err = schema.NewError(schema.KindInvalidRequest, "it is that of version %s", signed.Version)
	}
	if err == nil {
		_, err = r.stat(signed.SHA256)
	}
	if err != nil {
		return "", schema.Wrap(schema.KindInvalidRequest, err, "release %s cannot be used", version).
			WithReason("bad_release").WithNext("sign it again: gpuaas admin sign-agent --help")
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
	p, err := r.stat(strings.TrimPrefix(digest, "sha256:"))
	return p, err == nil
}

func (r releases) stat(sum string) (nodeapi.Package, error) {
	path := filepath.Join(r.dir, sum)
	info, err := os.Stat(path)
	if err != nil {
		return nodeapi.Package{}, err
	}
	return nodeapi.Package{Path: path, Size: info.Size()}, nil
}
