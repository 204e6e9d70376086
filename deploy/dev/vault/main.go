// Command gpuaas-dev-vault is a Vault server for one machine: the real core with the
// pki, transit and kv engines and approle logins. Its state is in one file, and its
// unseal key in another file.
//
// It is for development and tests only: the key file gives access to every secret.
// In production VAULT_ADDR points to the operator's cluster. Start reading at run;
// core.go assembles the server, storage.go stores its data.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/vault"
)

// stopDeadline bounds the wait for requests in progress.
const stopDeadline = 3 * time.Second

// options are the flags of the command.
type options struct {
	address  string // host:port of the API, plain HTTP
	data     string // folder of the storage
	keys     string // file with the unseal key and the root token
	logLevel string
}

func main() {
	opts := parseFlags()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, opts); err != nil {
		fmt.Fprintf(os.Stderr, "gpuaas-dev-vault: %v\n", err)
		os.Exit(1)
	}
}

func parseFlags() options {
	var o options
	flag.StringVar(&o.address, "address", "127.0.0.1:8200", "`host:port` of the API (plain HTTP)")
	flag.StringVar(&o.data, "data", "vault", "storage `folder`; created if missing")
	flag.StringVar(&o.keys, "keys", "vault-keys.json", "`file` with the unseal key and the root token; created at the first start with mode 0600")
	flag.StringVar(&o.logLevel, "log-level", "warn", "trace, debug, info, warn or error")
	flag.Parse()
	return o
}

// run serves an unsealed Vault until ctx ends, then seals it.
func run(ctx context.Context, o options) error {
	fmt.Fprintln(os.Stderr, "WARNING: this Vault is FOR DEVELOPMENT ONLY: plain HTTP, and its unseal key is in "+o.keys)
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return fmt.Errorf("cannot listen on --address %s: %w (stop the other program or choose another port)", o.address, err)
	}
	defer func() { _ = listener.Close() }()
	logger := hclog.New(&hclog.LoggerOptions{Name: "vault", Output: os.Stderr, Level: hclog.LevelFromString(o.logLevel)})
	core, storage, err := openCore(ctx, o, logger)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	server := &http.Server{
		Handler: vaulthttp.Handler.Handler(&vault.HandlerProperties{
			Core:           core,
			ListenerConfig: &configutil.Listener{Address: o.address},
		}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	fmt.Fprintf(os.Stderr, "vault ready: http://%s, state %s\n", listener.Addr(), o.data)
	if err := serve(ctx, server, listener); err != nil {
		return err
	}
	return core.Shutdown()
}

// serve handles requests until ctx ends, then waits for requests in progress.
func serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	deadline, cancel := context.WithTimeout(context.Background(), stopDeadline)
	defer cancel()
	err := server.Shutdown(deadline)
	if errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	}
	return err
}
