// Package vaulttest runs the real Vault of deploy/dev/vault for tests: one server per
// test process, with its own port and folder. Start at Shared.
package vaulttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/devserver"
)

// binary is the server in the project's bin directory.
const binary = "gpuaas-dev-vault"

// startTimeout bounds the startup of a server on a busy machine.
const startTimeout = 2 * time.Minute

// Shared is one server for all tests of a process. A test that seals or stops the server
// must not be parallel.
type Shared struct{ devserver.Shared[*Server] }

// Get returns the running and unsealed server.
func (s *Shared) Get(tb testing.TB) *Server {
	tb.Helper()
	return s.Start(tb, launch)
}

// Server is a running Vault.
type Server struct {
	// Address is its URL.
	Address string
	// TokenFile contains only the root token, for vault.AdminConfig.
	TokenFile string
	// RootToken and UnsealKey come from its key file.
	RootToken string
	UnsealKey string

	path, dir string
	listen    string
	process   *devserver.Process
}

func launch() (*Server, error) {
	path, err := devserver.Find(binary)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "vaulttest-*")
	if err != nil {
		return nil, err
	}
	s := &Server{path: path, dir: dir, TokenFile: filepath.Join(dir, "token")}
	err = s.startOnFreePort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	err = s.readKeys(s.keysFile())
	if err == nil {
		err = os.WriteFile(s.TokenFile, []byte(s.RootToken+"\n"), 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, s.process.Stop(), os.RemoveAll(dir))
	}
	return s, nil
}

// startOnFreePort starts the server on a port that stays free during a restart. Another
// process may take the port first.
func (s *Server) startOnFreePort() (err error) {
	for range 3 {
		var port int
		if port, err = stack.FreePorts(1); err != nil {
			return err
		}
		s.listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if err = s.start(); err == nil {
			return nil
		}
	}
	return err
}

// Close stops the server and removes its files.
func (s *Server) Close() {
	_ = s.process.Stop()
	_ = os.RemoveAll(s.dir)
}

func (s *Server) keysFile() string { return filepath.Join(s.dir, "keys.json") }

// readKeys reads the file of keys that the server wrote at its first start.
func (s *Server) readKeys(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var keys struct {
		UnsealKey []byte `json:"unseal_key"`
		RootToken string `json:"root_token"`
	}
	if err := json.Unmarshal(raw, &keys); err != nil {
		return err
	}
	s.RootToken, s.UnsealKey = keys.RootToken, fmt.Sprintf("%x", keys.UnsealKey)
	return nil
}

// InStack returns the Vault of a stack, to seal and unseal it.
func InStack(tb testing.TB, s *stack.Stack) *Server {
	tb.Helper()
	v := &Server{Address: s.Getenv("VAULT_ADDR")}
	if err := v.readKeys(filepath.Join(s.Dir, "secrets", "vault-keys.json")); err != nil {
		tb.Fatal(err)
	}
	return v
}

// start starts the server and waits until it is ready.
func (s *Server) start() error {
	p, said, err := devserver.Start(startTimeout, "vault ready: ", s.path,
		"--address", s.listen, "--data", filepath.Join(s.dir, "data"), "--keys", s.keysFile())
	if err != nil {
		return err
	}
	s.process = p
	s.Address, _, _ = strings.Cut(said, ",")
	return nil
}

// Stop stops the server gracefully. Start restarts it on the same address, unsealed and
// with its data. The end of the test restarts it in any case.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() { s.Start(tb) })
	if err := s.process.Stop(); err != nil {
		tb.Fatal(err)
	}
}

// Start starts a stopped server.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	if s.process.Running() {
		return
	}
	if err := s.start(); err != nil {
		tb.Fatal(err)
	}
}

// Seal seals the server. The end of the test unseals it in any case.
func (s *Server) Seal(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() { s.Unseal(tb) })
	if err := s.Root(tb).Sys().SealWithContext(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// Unseal unseals a sealed server.
func (s *Server) Unseal(tb testing.TB) {
	tb.Helper()
	status, err := s.Root(tb).Sys().Unseal(s.UnsealKey)
	if err != nil {
		tb.Fatal(err)
	}
	if status.Sealed {
		tb.Fatal("vault is still sealed")
	}
}

// Root returns a client with the root token.
func (s *Server) Root(tb testing.TB) *api.Client {
	tb.Helper()
	client := s.Client(tb)
	client.SetToken(s.RootToken)
	return client
}

// idle is the number of idle connections of a client, for concurrent benchmarks.
const idle = 64

// Client returns a client without a token.
func (s *Server) Client(tb testing.TB) *api.Client {
	tb.Helper()
	config := api.DefaultConfig()
	config.Address, config.AgentAddress, config.MaxRetries = s.Address, "", 0
	if t, ok := config.HttpClient.Transport.(*http.Transport); ok {
		t.MaxIdleConnsPerHost = idle
	}
	client, err := api.NewClient(config)
	if err != nil {
		tb.Fatal(err)
	}
	client.ClearToken()
	return client
}
