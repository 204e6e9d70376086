package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonroot is the user of the images, as in distroless images.
const nonroot = 65532

// image is one of the images: a static program, CA certificates and a user.
type image struct {
	name, program, description string
	// folders belong to the user. A new volume of Docker has their owner.
	folders []string
}

func images() []image {
	return []image{
		{"api", "gpuaas-api", "Admin API and node API of gpuaas", []string{"var/lib/gpuaas-api/"}},
		{"worker", "gpuaas-worker", "Worker of gpuaas, which runs the lifecycle operations", []string{"var/lib/gpuaas-audit/"}},
		{"cli", "gpuaas", "Command line of gpuaas", []string{"logins/"}},
		{"cluster-agent", "gpuaas-cluster-agent", "Agent that repairs the nodes of a Kubernetes cluster", nil},
	}
}

// imageFile is the OCI layout of an image in the release's folder.
func (r *release) imageFile(i image) string {
	return filepath.Join(r.out, "images", "gpuaas-"+i.name+"_"+r.version.tag()+".oci.tar")
}

// buildImages writes each image as a tar of an OCI layout, with an index of all Linux
// platforms.
func (r *release) buildImages(context.Context) error {
	base, err := r.version.baseLayer()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(r.out, "images"), 0o755); err != nil {
		return err
	}
	for _, i := range images() {
		fmt.Fprintln(r.log, "packing", filepath.Base(r.imageFile(i)))
		index, err := r.imageIndex(i, base)
		if err == nil {
			err = r.writeLayout(i, index)
		}
		if err != nil {
			return fmt.Errorf("image %s: %w", i.name, err)
		}
	}
	return nil
}

// imageIndex builds the image for all Linux platforms.
func (r *release) imageIndex(i image, base v1.Layer) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		built, err := r.imageFor(i, p, base)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: built, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	return index, nil
}

// imageFor builds the image for one platform.
func (r *release) imageFor(i image, p platform, base v1.Layer) (v1.Image, error) {
	entries := []entry{{name: "usr/local/bin/" + i.program, source: filepath.Join(r.bin(p), i.program), mode: 0o755},
		{name: "usr/share/doc/gpuaas/LICENSE", source: filepath.Join(r.source, "LICENSE"), mode: 0o644},
		{name: "usr/share/doc/gpuaas/" + noticesFile, source: noticesIn(r.stage()), mode: 0o644}}
	for _, f := range i.folders {
		entries = append(entries, entry{name: f, mode: 0o700, owner: nonroot})
	}
	program, err := r.version.layer(entries)
	if err != nil {
		return nil, err
	}
	start := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	start, err = mutate.ConfigFile(start, &v1.ConfigFile{OS: p.os, Architecture: p.arch, RootFS: v1.RootFS{Type: "layers"}, Config: r.version.imageConfig(i)})
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: r.version.Time}
	built, err := mutate.Append(start,
		mutate.Addendum{Layer: base, History: v1.History{Created: created, CreatedBy: "tools/release: CA certificates and the user nonroot"}},
		mutate.Addendum{Layer: program, History: v1.History{Created: created, CreatedBy: "tools/release: " + i.program}})
	if err != nil {
		return nil, err
	}
	return mutate.CreatedAt(built, created)
}

// imageConfig is how a container of the image runs.
func (v version) imageConfig(i image) v1.Config {
	const project = "https://github.com/gpuaas/gpuaas"
	return v1.Config{
		User: fmt.Sprintf("%d:%d", nonroot, nonroot), WorkingDir: "/",
		Entrypoint: []string{"/usr/local/bin/" + i.program},
		Env:        []string{"PATH=/usr/local/bin", "HOME=/home/nonroot"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "gpuaas/" + i.name, "org.opencontainers.image.description": i.description,
			"org.opencontainers.image.version": v.Number, "org.opencontainers.image.revision": v.Commit,
			"org.opencontainers.image.created": v.Time.Format("2006-01-02T15:04:05Z07:00"),
			"org.opencontainers.image.source":  project, "org.opencontainers.image.url": project,
			"org.opencontainers.image.licenses": productLicense,
		},
	}
}

// baseLayer is the layer that all images share: the CA certificates that Go's
// crypto/x509roots pins, which are those of Mozilla, and the user.
func (v version) baseLayer() (v1.Layer, error) {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		// A root with a constraint is trusted only in part, which a file cannot express.
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	passwd := fmt.Sprintf("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/home/nonroot:/sbin/nologin\n", nonroot, nonroot)
	return v.layer([]entry{
		{name: "etc/passwd", content: []byte(passwd), mode: 0o644},
		{name: "etc/group", content: fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonroot), mode: 0o644},
		{name: "etc/ssl/certs/ca-certificates.crt", content: roots.Bytes(), mode: 0o644},
		{name: "home/nonroot/", mode: 0o700, owner: nonroot},
		{name: "tmp/", mode: 0o1777},
	})
}

// layer builds a layer of these files.
func (v version) layer(entries []entry) (v1.Layer, error) {
	var plain bytes.Buffer
	if err := writeTar(&plain, entries, v.Time); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(plain.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// dockerManifest returns the file that docker load reads if Docker's image store does not
// read OCI layouts. It can name one platform only: amd64, or the first one of an index without it.
func dockerManifest(name string, index v1.ImageIndex) ([]byte, error) {
	platforms, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(platforms.Manifests, func(d v1.Descriptor) bool { return d.Platform.Architecture == "amd64" })
	built, err := index.Image(platforms.Manifests[max(i, 0)].Digest)
	if err != nil {
		return nil, err
	}
	manifest, err := built.Manifest()
	if err != nil {
		return nil, err
	}
	described := tarball.Descriptor{Config: blob(manifest.Config.Digest), RepoTags: []string{name}}
	for _, l := range manifest.Layers {
		described.Layers = append(described.Layers, blob(l.Digest))
	}
	return json.Marshal(tarball.Manifest{described})
}

// blob is the path of a file in an OCI layout.
func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// writeLayout writes an index as a tar of an OCI layout.
func (r *release) writeLayout(i image, index v1.ImageIndex) (err error) {
	folder := filepath.Join(r.work, "images", i.name)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	name := "gpuaas/" + i.name + ":" + r.version.tag()
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version.tag(), "io.containerd.image.name": "docker.io/" + name,
	})); err != nil {
		return err
	}
	manifest, err := dockerManifest(name, index)
	if err != nil {
		return err
	}
	entries := []entry{{name: "manifest.json", content: manifest, mode: 0o644}}
	err = filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			entries = append(entries, entry{name: filepath.ToSlash(strings.TrimPrefix(path, folder+"/")), source: path, mode: 0o644})
		}
		return err
	})
	if err != nil {
		return err
	}
	file, err := os.Create(r.imageFile(i))
	if err != nil {
		return err
	}
	return errors.Join(writeTar(file, entries, r.version.Time), file.Close())
}
