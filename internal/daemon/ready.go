package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/gpuaas/gpuaas/schema"
)

const readyUsage = "exit with 0 if the program that runs with the same configuration on this machine is ready, otherwise with 1"

// ready is the flag --ready: it requests /readyz of the program that runs on this machine with the same
// configuration, for health checks in images without a shell. It returns ExitDone if that is ready.
func (p Program) ready(ctx context.Context, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(ctx, probeBudget)
	defer cancel()
	if err := requestReady(ctx, p.Config.common().MetricsAddr); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return schema.ExitFailed
	}
	return schema.ExitDone
}

// requestReady returns nil if /readyz of a listen address returns 200.
func requestReady(ctx context.Context, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<12))
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(body))
}
