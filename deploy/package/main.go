// Command package builds the node agent's install package, a tar.gz of the binary,
// its installer and its systemd unit, and prints its digest. With arguments of the form
// ARCH=FILE, the package contains a binary for each architecture, from which the
// installer selects. With -licenses, it contains the licenses of the binary's modules.
// The build is reproducible: the same binaries give the same digest.
package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed install-node-agent.sh gpuaas-node-agent.service
var files embed.FS

func main() {
	agent := flag.String("agent", "bin/gpuaas-node-agent", "agent `binary`, without arguments")
	licenses := flag.String("licenses", "", "`file` with the licenses of the binary's modules, which keeps its name")
	out := flag.String("o", "bin/gpuaas-node-agent.tar.gz", "output `file`")
	flag.Parse()
	digest, err := pack(*agent, flag.Args(), *licenses, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "package:", err)
		os.Exit(1) //nolint:forbidigo // in a main package
	}
	fmt.Fprintf(os.Stdout, "%s sha256:%s\n", *out, digest)
}

// file is a file that the package contains beside the installer and the unit.
type file struct {
	name, path string
	mode       int64
}

// pack builds the package of one agent, or of the agents that the arguments name.
func pack(agent string, args []string, licenses, out string) (digest string, err error) {
	contents := []file{{"gpuaas-node-agent", agent, 0o755}}
	if len(args) > 0 {
		contents = nil
	}
	for _, arg := range args {
		arch, path, ok := strings.Cut(arg, "=")
		if !ok || !slices.Contains([]string{"amd64", "arm64"}, arch) {
			return "", fmt.Errorf("argument %q is not amd64=FILE or arm64=FILE", arg)
		}
		contents = append(contents, file{"gpuaas-node-agent-" + arch, path, 0o755})
	}
	if licenses != "" {
		contents = append(contents, file{filepath.Base(licenses), licenses, 0o644})
	}
	return build(contents, out)
}

// build writes the package atomically and returns its digest.
func build(contents []file, out string) (digest string, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(out), filepath.Base(out)+".*")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // fails after the rename
	sum := sha256.New()
	if err := write(io.MultiWriter(tmp, sum), contents); err != nil {
		return "", err
	}
	if err := tmp.Chmod(0o644); err != nil {
		return "", err
	}
	if err := tmp.Close(); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), os.Rename(tmp.Name(), out)
}

// write writes the archive without timestamps and owners.
func write(w io.Writer, contents []file) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	for _, f := range contents {
		content, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		if err := add(archive, f.name, f.mode, content); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name string
		mode int64
	}{{"gpuaas-node-agent.service", 0o644}, {"install-node-agent.sh", 0o755}} {
		text, err := fs.ReadFile(files, f.name)
		if err != nil {
			return err
		}
		if err := add(archive, f.name, f.mode, text); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zip.Close()
}

func add(archive *tar.Writer, name string, mode int64, content []byte) error {
	h := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Format: tar.FormatUSTAR}
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}
