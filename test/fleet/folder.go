package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// folder contains the files of one node's agent:
//
//	node.json      the node's ID and the API's address, without secrets
//	ca.crt node-ca.crt cert.pem key.pem state/    the agent's own files
type folder string

// nodeRecord is the content of node.json.
type nodeRecord struct {
	NodeID    string `json:"node_id"`
	APIURL    string `json:"api_url,omitempty"`
	Env       string `json:"env,omitempty"`
	Verifiers string `json:"verifiers,omitempty"`
	// EnrollKey is the idempotency key of the enrollment, so that an interrupted
	// fleet continues the operation that it started.
	EnrollKey string `json:"enroll_key"`
}

func (f folder) file(name string) string { return filepath.Join(string(f), name) }

// read returns the record; found is false if the folder has none.
func (f folder) read() (c nodeRecord, found bool, err error) {
	raw, err := os.ReadFile(f.file("node.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", f.file("node.json"), err)
	}
	return c, err == nil, err
}

// enrolled reports whether the folder contains an identity.
func (f folder) enrolled() bool {
	_, err := os.Stat(f.file("cert.pem"))
	return err == nil
}

// begin replaces the folder by that of a node without an identity.
func (f folder) begin(nodeID string) (nodeRecord, error) {
	c := nodeRecord{NodeID: nodeID, EnrollKey: schema.NewID()}
	if err := os.RemoveAll(string(f)); err != nil {
		return c, err
	}
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return c, err
	}
	return c, f.save(c)
}

func (f folder) save(c nodeRecord) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return f.write("node.json", raw)
}

// saveBundle stores a bundle without its token.
func (f folder) saveBundle(c nodeRecord, b trust.BootstrapBundle) (nodeRecord, error) {
	c.APIURL, c.Env, c.Verifiers = b.APIURL, b.Env, b.TaskSigningPubkeys
	return c, errors.Join(f.write("ca.crt", []byte(b.CABundlePEM)), f.write("node-ca.crt", []byte(b.NodeCertCABundlePEM)), f.save(c))
}

// write replaces a file atomically.
func (f folder) write(name string, content []byte) error {
	temp := f.file("." + name)
	if err := os.WriteFile(temp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, f.file(name))
}

// config returns the agent's configuration.
func (f folder) config(c nodeRecord) agent.Config {
	return agent.Config{
		NodeID: c.NodeID, APIURL: c.APIURL, SigningPubkeys: c.Verifiers, Env: c.Env,
		CABundlePath: f.file("ca.crt"), NodeCABundlePath: f.file("node-ca.crt"),
		CertPath: f.file("cert.pem"), KeyPath: f.file("key.pem"),
		StateDir: f.file("state"), WorkloadDriver: inventory.DriverNone,
	}
}

// disk is the operating system's file system without syncs. The nodes of a fleet share
// one disk, unlike real ones, and their state must survive only the process's exit.
type disk struct{ agent.OS }

// Create implements agent.FS.
func (d disk) Create(path string) (agent.File, error) {
	f, err := d.OS.Create(path)
	return unsynced{f}, err
}

// SyncDir implements agent.FS.
func (disk) SyncDir(string) error { return nil }

type unsynced struct{ agent.File }

// Sync implements agent.File.
func (unsynced) Sync() error { return nil }
