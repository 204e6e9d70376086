package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sassoftware/go-rpmutils"
	"github.com/sassoftware/go-rpmutils/cpio"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// packaged is what a package says about a path.
type packaged struct {
	Kind  byte // a tar.Type
	Mode  int64
	Owner string // USER:GROUP
	Link  string
	// Sum is the hex SHA-256 of a file.
	Sum string
}

// debFiles lists a package for Debian. It includes the parents of all paths.
func debFiles(t *testing.T, file string) map[string]packaged {
	t.Helper()
	content, err := exec.CommandContext(t.Context(), need.Program(t, "dpkg-deb", "use Debian or Ubuntu"), "--fsys-tarfile", file).Output()
	require.NoError(t, err)
	archive, list := tar.NewReader(bytes.NewReader(content)), map[string]packaged{}
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		p := packaged{Kind: h.Typeflag, Mode: h.Mode, Owner: h.Uname + ":" + h.Gname, Link: h.Linkname}
		if p.Kind == tar.TypeReg {
			sum := sha256.New()
			_, err := io.Copy(sum, archive)
			require.NoError(t, err)
			p.Sum = hex.EncodeToString(sum.Sum(nil))
		}
		list[filepath.Join("/", h.Name)] = p
	}
}

// openRPM reads the header of a package for RPM.
func openRPM(t *testing.T, file string) *rpmutils.RpmHeader {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close() //nolint:errcheck // it is open for reading only
	opened, err := rpmutils.ReadRpm(f)
	require.NoError(t, err)
	_, err = f.Seek(0, io.SeekStart)
	require.NoError(t, err)
	_, _, err = rpmutils.Verify(f, nil)
	require.NoError(t, err, "the digests in %s", file)
	return opened.Header
}

// rpmFiles lists a package for RPM.
func rpmFiles(t *testing.T, header *rpmutils.RpmHeader) map[string]packaged {
	t.Helper()
	files, err := header.GetFiles()
	require.NoError(t, err)
	list := map[string]packaged{}
	for _, f := range files {
		p := packaged{Kind: tar.TypeReg, Mode: int64(f.Mode() & 0o7777), Owner: f.UserName() + ":" + f.GroupName(), Link: f.Linkname(), Sum: f.Digest()}
		switch f.Mode() &^ 0o7777 {
		case cpio.S_ISDIR:
			p.Kind, p.Sum = tar.TypeDir, ""
		case cpio.S_ISLNK:
			p.Kind, p.Mode, p.Sum = tar.TypeSymlink, 0o777, "" // the mode of a link has no meaning
		}
		list[f.Name()] = p
	}
	return list
}

// TestRPMContents: a package for RPM has the files, modes, owners and scripts of the one for Debian.
func TestRPMContents(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	built(t, r, (*release).buildPackages)
	for _, name := range packageNames() {
		for arch, rpmArch := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
			header := openRPM(t, filepath.Join(r.out, fmt.Sprintf("%s-1.2.3-1.%s.rpm", name, rpmArch)))
			want, got := debFiles(t, filepath.Join(r.out, name+"_1.2.3_"+arch+".deb")), rpmFiles(t, header)
			for path, p := range want {
				// RPM does not list the folders of the distribution.
				if _, listed := got[path]; p.Kind == tar.TypeDir && p.Mode == 0o755 && !listed {
					delete(want, path)
				}
			}
			// The distributions have different folders for completions of zsh.
			if p, ok := want["/usr/share/zsh/vendor-completions/_gpuaas"]; ok {
				delete(want, "/usr/share/zsh/vendor-completions/_gpuaas")
				want["/usr/share/zsh/site-functions/_gpuaas"] = p
			}
			assert.Equal(t, want, got, "%s for %s", name, arch)
			requireRPMFields(t, header, name, rpmArch)
			requireScripts(t, r, header, name)
		}
	}
}

func requireRPMFields(t *testing.T, header *rpmutils.RpmHeader, name, arch string) {
	t.Helper()
	for tag, want := range map[int]string{rpmutils.NAME: name, rpmutils.ARCH: arch, rpmutils.VERSION: "1.2.3", rpmutils.RELEASE: "1", rpmutils.LICENSE: "Apache-2.0"} {
		got, err := header.GetString(tag)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	if name != "gpuaas" {
		needs, err := header.GetStrings(rpmutils.REQUIRENAME)
		require.NoError(t, err)
		assert.Contains(t, needs, "systemd")
	}
}

// requireScripts compares the scripts of a package for RPM with those of the one for Debian.
func requireScripts(t *testing.T, r *release, header *rpmutils.RpmHeader, name string) {
	t.Helper()
	control := t.TempDir()
	output(t, "dpkg-deb", "-e", filepath.Join(r.out, name+"_1.2.3_amd64.deb"), control)
	for script, tag := range map[string]int{"postinst": rpmutils.POSTIN, "prerm": rpmutils.PREUN, "postrm": rpmutils.POSTUN, "preinst": rpmutils.PREIN} {
		text, err := os.ReadFile(filepath.Join(control, script))
		if name == "gpuaas" || script == "preinst" {
			require.ErrorIs(t, err, os.ErrNotExist)
			assert.False(t, header.HasTag(tag), "%s of %s", script, name)
			continue
		}
		require.NoError(t, err)
		got, err := header.GetString(tag)
		require.NoError(t, err)
		assert.Equal(t, strings.TrimSpace(string(text)), strings.TrimSpace(got), "%s of %s", script, name)
	}
}
