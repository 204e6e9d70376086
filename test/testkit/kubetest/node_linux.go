package kubetest

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"
)

//go:embed node
var nodeFiles embed.FS

// node is a running kubelet with its own containerd.
type node struct {
	Name       string
	Dir        string // of all its files that the host sees
	Kubeconfig string // with the node's own credentials
	Program    string // of the kubelet
	Image      string // the archive
	CA         string // the authority of the API server's clients
	CNI        string // the folder of the network plugins
	Subnet     string // of its pods
	Port       int    // of the kubelet
	Cgroup     string // the parent of its cgroups

	process *process
}

// start starts the node. It is ready later.
func (n *node) start() error {
	for _, name := range []string{"manifests", "net.d", "pods", "certificates", "plugins"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, name), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range cgroupMounts() {
		if err := os.Mkdir(filepath.Join(dir, n.Cgroup), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	templates, err := template.ParseFS(nodeFiles, "node/*")
	if err != nil {
		return err
	}
	for name, path := range map[string]string{
		"containerd.toml": "containerd.toml", "kubelet.yaml": "kubelet.yaml", "pods.conflist": "net.d/pods.conflist", "start.sh": "start.sh",
	} {
		var text strings.Builder
		if err := templates.ExecuteTemplate(&text, name, n); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.Dir, path), []byte(text.String()), 0o600); err != nil {
			return err
		}
	}
	n.process, err = startProcess(n.Dir, n.Name, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, "sh", "start.sh")
	return err
}

// stop kills the node's processes and removes its cgroups.
func (n *node) stop() error {
	if n.process == nil {
		return nil
	}
	err := n.process.kill()
	for _, dir := range cgroupMounts() {
		path := filepath.Join(dir, n.Cgroup)
		err = errors.Join(err, wait("removing "+path, stopTimeout, func() error { return removeCgroup(path) }))
	}
	return err
}

// cgroupMounts returns the roots of all hierarchies: one for each controller of version
// 1, or the one of version 2.
func cgroupMounts() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root}
	}
	lists, _ := filepath.Glob(filepath.Join(root, "*", "cgroup.procs")) // the pattern is valid
	for i := range lists {
		lists[i] = filepath.Dir(lists[i])
	}
	return lists
}

// removeCgroup removes a cgroup and its children. It fails while a process is in one.
func removeCgroup(path string) error {
	var dirs []string
	err := filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

// cniFolder returns the folder of the network plugins.
func cniFolder() (string, error) {
	folders := []string{"/usr/lib/cni", "/opt/cni/bin"}
	for _, dir := range folders {
		if _, err := os.Stat(filepath.Join(dir, "ptp")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no network plugins in %s", strings.Join(folders, " or "))
}

// cgroupName returns a name that no other cluster on this machine has.
func cgroupName(node string) string {
	return fmt.Sprintf("kubetest-%d-%d-%s", os.Getpid(), time.Now().UnixNano(), node)
}
