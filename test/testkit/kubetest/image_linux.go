package kubetest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Image is the image of all containers: see the program in folder container. The nodes
// have it, and can pull no other.
const Image = "docker.io/gpuaas/test:1"

// program is the path of the program in the image.
const program = "/container"

// buildImage builds the program and writes the image to a file that containerd imports.
func buildImage(ctx context.Context, dir, file string) error {
	binary := filepath.Join(dir, "container")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", binary,
		"github.com/gpuaas/gpuaas/test/testkit/kubetest/container")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the program of the containers: %w: %s", err, out)
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	archive, err := packImage(content)
	if err != nil {
		return err
	}
	return os.WriteFile(file, archive, 0o600)
}

// packImage returns an archive in the format of docker save, with one layer that contains
// only the program.
func packImage(content []byte) ([]byte, error) {
	layer, err := pack(entry{program[1:], 0o755, content})
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{program}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{Image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	return pack(entry{"config.json", 0o644, config}, entry{"layer.tar", 0o644, layer}, entry{"manifest.json", 0o644, manifest})
}

// entry is a file of an archive.
type entry struct {
	name    string
	mode    int64
	content []byte
}

func pack(entries ...entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content))}
		if err := w.WriteHeader(header); err != nil {
			return nil, errors.Join(err, w.Close())
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}
