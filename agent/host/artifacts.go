package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/envfile"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// maxArtifactFile bounds the files whose digest is reported. A larger one is
// inventory.Unreadable.
const maxArtifactFile = 1 << 30

// ParseArtifacts parses a list of files, path=name separated by commas, and returns the paths by
// name. Paths are absolute, and the agent's own names are reserved.
func ParseArtifacts(list string) (map[string]string, error) {
	files := map[string]string{}
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		at := strings.LastIndex(entry, "=")
		if at < 0 || !filepath.IsAbs(entry[:at]) || !inventory.ValidArtifact(entry[at+1:]) {
			return nil, fmt.Errorf("%q is not an absolute path, =, and a name of a-z A-Z 0-9 . _ / -", entry)
		}
		name := entry[at+1:]
		if _, twice := files[name]; twice || slices.Contains(ownArtifacts(), name) {
			return nil, fmt.Errorf("%q names %s, which is taken", entry, name)
		}
		files[name] = entry[:at]
	}
	if most := inventory.MaxArtifacts - len(ownArtifacts()); len(files) > most {
		return nil, fmt.Errorf("%d files; at most %d are reported", len(files), most)
	}
	return files, nil
}

// ownArtifacts are the names that files must not have.
func ownArtifacts() []string {
	return []string{inventory.ArtifactAgent, inventory.ArtifactAgentBinary, inventory.ArtifactCABundle, inventory.ArtifactGPUDriver, inventory.ArtifactKernel,
		inventory.ArtifactOSImage, inventory.ArtifactVerifierSet}
}

// Artifacts reads the versions and digests of what runs on a host. It is not safe for concurrent
// use. It keeps the digest of a file until its size or the time of its last change differs.
type Artifacts struct {
	// Host is the machine.
	Host Host
	// Files are the paths of the files by name.
	Files  map[string]string
	hashed map[string]hashedFile // by path
}

// hashedFile is a file whose digest is known.
type hashedFile struct {
	size    int64
	changed time.Time
	digest  string
}

// Read returns the versions and digests by name. What the host does not have is missing. When ctx ends,
// Read stops in the middle of a file, and the result is incomplete.
func (a *Artifacts) Read(ctx context.Context) map[string]string {
	found := map[string]string{}
	for name, version := range map[string]string{
		inventory.ArtifactKernel: a.Host.kernel(), inventory.ArtifactOSImage: a.Host.osImage(),
		inventory.ArtifactGPUDriver: readLine(a.Host.file("/sys/module/nvidia/version")),
	} {
		if version = text.Printable(version, inventory.MaxArtifactVersion); version != "" {
			found[name] = version
		}
	}
	if a.hashed == nil {
		a.hashed = map[string]hashedFile{}
	}
	maps.DeleteFunc(a.hashed, func(path string, _ hashedFile) bool { _, err := os.Stat(path); return err != nil })
	for name, path := range a.Files {
		if digest := a.digest(ctx, path); digest != "" {
			found[name] = digest
		}
	}
	return found
}

// digest returns the SHA-256 of a file, "" if there is none, and inventory.Unreadable if it cannot be
// read or is no regular file of at most 1 GiB.
func (a *Artifacts) digest(ctx context.Context, path string) string {
	// A named pipe would block the open.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		return inventory.Unreadable
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxArtifactFile {
		return inventory.Unreadable
	}
	is := hashedFile{size: info.Size(), changed: info.ModTime()}
	known := a.hashed[path]
	if is.digest = known.digest; is == known && known.digest != "" {
		return known.digest
	}
	sum := sha256.New()
	// A file that grows meanwhile is read up to the bound; the next reading sees its other size.
	if _, err := io.Copy(sum, io.LimitReader(untilEnd(ctx, f), maxArtifactFile)); err != nil {
		return inventory.Unreadable
	}
	is.digest = hex.EncodeToString(sum.Sum(nil))
	a.hashed[path] = is
	return is.digest
}

// readFunc is an io.Reader.
type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// untilEnd reads from r until ctx ends, so that large files do not delay the stop of the agent.
func untilEnd(ctx context.Context, r io.Reader) io.Reader {
	return readFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

// osImage identifies the image of the operating system: IMAGE_ID and IMAGE_VERSION of os-release, or
// ID and VERSION_ID.
func (h Host) osImage() string {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		raw, err := os.ReadFile(h.file(path))
		if err != nil {
			continue
		}
		if vars, err := envfile.Parse(string(raw)); err == nil {
			id, version := vars["IMAGE_ID"], vars["IMAGE_VERSION"]
			if id == "" {
				id, version = vars["ID"], vars["VERSION_ID"]
			}
			return strings.Trim(cmp.Or(id, "unknown")+"-"+version, "-")
		}
	}
	return ""
}
