package main

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// TestImages: each image has both platforms, the user, the entry point and the labels.
func TestImages(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	built(t, r, (*release).buildImages)
	for _, i := range images() {
		folder := filepath.Join(t.TempDir(), i.name)
		require.NoError(t, os.Mkdir(folder, 0o755))
		output(t, "tar", "-xf", r.imageFile(i), "-C", folder)
		root, err := layout.ImageIndexFromPath(folder)
		require.NoError(t, err)
		top, err := root.IndexManifest()
		require.NoError(t, err)
		require.Equal(t, "1.2.3", top.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
		index, err := root.ImageIndex(top.Manifests[0].Digest)
		require.NoError(t, err)
		manifest, err := index.IndexManifest()
		require.NoError(t, err)
		var platforms []string
		for _, m := range manifest.Manifests {
			platforms = append(platforms, m.Platform.String())
			built, err := index.Image(m.Digest)
			require.NoError(t, err)
			config, err := built.ConfigFile()
			require.NoError(t, err)
			assert.Equal(t, "65532:65532", config.Config.User)
			assert.Equal(t, []string{"/usr/local/bin/" + i.program}, config.Config.Entrypoint)
			assert.Equal(t, "1.2.3", config.Config.Labels["org.opencontainers.image.version"])
			assert.Equal(t, m.Platform.Architecture, config.Architecture)
			assert.Equal(t, r.version.Time, config.Created.Time)
		}
		assert.Equal(t, []string{"linux/amd64", "linux/arm64"}, platforms)
	}
}

// TestImageThatDockerLoads: docker load gets the image for amd64, in any order of the platforms.
func TestImageThatDockerLoads(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	slices.Reverse(r.platforms)
	built(t, r, (*release).buildImages)
	folder := t.TempDir()
	output(t, "tar", "-xf", r.imageFile(images()[0]), "-C", folder)
	read := func(name string, v any) {
		text, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, v))
	}
	var manifest tarball.Manifest
	read("manifest.json", &manifest)
	require.Len(t, manifest, 1)
	var config v1.ConfigFile
	read(manifest[0].Config, &config)
	require.Equal(t, "amd64", config.Architecture)
}

// TestDeploymentsNameImages: deploy/compose runs the images under the names, the user and
// the paths that they have.
func TestDeploymentsNameImages(t *testing.T) {
	t.Parallel()
	compose, err := os.ReadFile("../../deploy/compose/compose.yaml")
	require.NoError(t, err)
	for _, i := range images()[:3] {
		assert.Contains(t, string(compose), "${GPUAAS_REGISTRY:-gpuaas}/"+i.name+":")
		for _, folder := range i.folders {
			assert.Contains(t, string(compose), ":/"+strings.TrimSuffix(folder, "/"), "the image has a folder that no volume uses")
		}
	}
	for _, i := range images()[:2] {
		assert.Contains(t, string(compose), "[CMD, /usr/local/bin/"+i.program+", --ready]")
	}
	assert.Contains(t, string(compose), fmt.Sprintf("user: %q", fmt.Sprintf("%d:%d", nonroot, nonroot)))
}

// TestWorkflowPushesImages: the workflow of releases pushes each image under the name that
// deploy/compose composes from GPUAAS_REGISTRY.
func TestWorkflowPushesImages(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	built(t, r, (*release).buildImages)
	text, err := os.ReadFile("../../.github/workflows/release.yml")
	require.NoError(t, err)
	var workflow struct {
		Jobs struct {
			Release struct {
				Steps []struct{ Name, Run string }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &workflow))
	var push string
	for _, s := range workflow.Jobs.Release.Steps {
		if s.Name == "Push the images" {
			push = s.Run
		}
	}
	bin := t.TempDir()
	write(t, filepath.Join(bin, "skopeo"), "#!/bin/sh\nif [ \"$1\" = copy ]; then echo \"$@\" >> copied; fi\n")
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", push)
	cmd.Dir = filepath.Dir(r.out)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "REGISTRY=ghcr.io/Example", "RUNNER_TEMP="+cmd.Dir, "TOKEN=", "GITHUB_ACTOR=a")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	copied, err := os.ReadFile(filepath.Join(cmd.Dir, "copied"))
	require.NoError(t, err)
	for _, i := range images() {
		assert.Contains(t, string(copied), " docker://ghcr.io/example/gpuaas/"+i.name+":1.2.3\n")
	}
}

// program prints what a program of an image has: its arguments, user and CA certificates,
// and whether it can write to the root folder.
const program = `package main

import (

	"fmt"
	"os"
	"os/user"
)

func main() {
	u, err := user.Current()
	fmt.Println(os.Args[1], os.Getuid(), u.Username, err)
	fmt.Println(os.WriteFile("/x", nil, 0o600) != nil)
	pem, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	fmt.Println(len(pem) > 100_000, err)

}
`

// TestRealDockerRunsImage: Docker pulls an image from a registry or loads its file, and runs
// it as the user nonroot with a read-only root.
func TestRealDockerRunsImage(t *testing.T) {
	t.Parallel()
	docker := startDocker(t)
	r := newTestRelease(t)
	main := filepath.Join(t.TempDir(), "main.go")
	write(t, main, program)
	for _, p := range r.platforms {
		binary := filepath.Join(r.bin(p), "gpuaas-api")
		require.NoError(t, os.Remove(binary))
		build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, main)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch)
		out, err := build.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	base, err := r.version.baseLayer()
	require.NoError(t, err)
	index, err := r.imageIndex(images()[0], base)
	require.NoError(t, err)
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	reference := strings.TrimPrefix(server.URL, "http://") + "/gpuaas/api:1.2.3"
	tag, err := name.NewTag(reference)
	require.NoError(t, err)
	require.NoError(t, remote.WriteIndex(tag, index))
	docker("pull", "--quiet", reference)
	run := func(reference string) string {
		return docker("run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", reference, "version")
	}
	const want = "version 65532 nonroot <nil>\ntrue\ntrue <nil>\n"
	require.Equal(t, want, run(reference))
	docker("rmi", reference)
	require.NoError(t, os.Mkdir(filepath.Join(r.out, "images"), 0o755))
	require.NoError(t, r.writeLayout(images()[0], index))
	docker("load", "--input", r.imageFile(images()[0]))
	require.Equal(t, want, run("gpuaas/api:1.2.3"))
}

// startDocker starts a daemon and returns a function that runs a command of its client.
func startDocker(t *testing.T) func(args ...string) string {
	t.Helper()
	daemon := need.Program(t, "dockerd", "run: sh tools/need.sh host")
	client := need.Program(t, "docker", "run: sh tools/need.sh host")
	need.Root(t, "dockerd")
	folder, err := os.MkdirTemp("", "docker") // a short path, for the socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket := "unix://" + filepath.Join(folder, "s")
	cmd := exec.Command(daemon, "--data-root", folder+"/data", "--exec-root", folder+"/exec", "--pidfile", folder+"/pid", "-H", socket,
		"--iptables=false", "--ip6tables=false", "--bridge=none", "--log-level=error")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool { return exec.Command(client, "-H", socket, "info").Run() == nil }, time.Minute, 100*time.Millisecond)
	return func(args ...string) string {
		t.Helper()
		return output(t, client, append([]string{"-H", socket}, args...)...)
	}
}
