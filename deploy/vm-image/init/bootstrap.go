package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	bootFile = "/sys/firmware/qemu_fw_cfg/by_name/" + machine.BootDocumentName + "/raw"
	// maxDocument bounds the boot document and the bundle.
	maxDocument = 1 << 20
	// fetchTimeout bounds the time to get the bundle, and requestTimeout one request.
	fetchTimeout   = 15 * time.Minute
	requestTimeout = 30 * time.Second
)

// readBoot reads the boot document.
func readBoot(path string) (d machine.BootDocument, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return d, errors.New("the provider passed no boot document, and no disk has the machine's identity: gpuaas node terminate NODE --force, then gpuaas node provision NODE")
	}
	if err != nil {
		return d, fmt.Errorf("reading the boot document: %w", err)
	}
	if json.Unmarshal(text, &d) != nil { // its error may quote the reference
		return d, errors.New("the boot document is not valid JSON")
	}
	if d.Reference == "" {
		return d, errors.New("the boot document has no reference")
	}
	if err := trust.CheckAPIURL(d.BaseURL); err != nil {
		return d, fmt.Errorf("the boot document's base_url: %w", err)
	}
	return d, nil
}

// newClient returns a client that trusts only the CAs of the boot document.
func newClient(d machine.BootDocument) (*http.Client, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(d.CABundlePEM)) {
		return nil, errors.New("the boot document has no CA of the node API")
	}
	return &http.Client{
		Timeout:       requestTimeout,
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// laterError is that of a request that the node API may not have processed. If it has, the
// reference is used up, and the next request is refused.
type laterError struct{ error }

// fetch exchanges the reference for the bundle. It repeats a request that the node API did not
// refuse, because the API may restart while machines boot.
func fetch(ctx context.Context, client *http.Client, d machine.BootDocument, pause time.Duration, say func(string, ...any)) (trust.BootstrapBundle, error) {
	for {
		b, err := fetchOnce(ctx, client, d)
		if _, later := errors.AsType[laterError](err); !later {
			return b, err
		}
		say("no bundle yet: %v; retrying in %s", err, pause)
		select {
		case <-ctx.Done():
			return b, err
		case <-time.After(pause):
		}
		pause = min(2*pause, 16*time.Second)
	}
}

func fetchOnce(ctx context.Context, client *http.Client, d machine.BootDocument) (b trust.BootstrapBundle, err error) {
	body, err := json.Marshal(trust.BootstrapRequest{Reference: d.Reference})
	if err != nil {
		return b, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(d.BaseURL, "/")+"/internal/v1/bootstrap", bytes.NewReader(body))
	if err != nil {
		return b, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return b, laterError{err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	switch {
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= http.StatusInternalServerError:
		return b, laterError{fmt.Errorf("the node API answers %s", resp.Status)}
	case resp.StatusCode != http.StatusOK:
		return b, fmt.Errorf("the node API answers %s: %s", resp.Status, printable(text))
	case err != nil:
		return b, laterError{fmt.Errorf("reading the bundle: %w", err)}
	case json.Unmarshal(text, &b) != nil: // its error may quote the token
		return b, errors.New("the bundle is not valid JSON")
	case !schema.IsID(b.NodeID) || b.EnrollmentToken == "":
		return b, errors.New("the bundle has no node ID or no token")
	}
	return b, nil
}

// printable returns the beginning of an error response in one line.
func printable(text []byte) string {
	return fmt.Sprintf("%.300q", text)
}

// configure writes the agent's configuration below root.
func configure(root string, b trust.BootstrapBundle) error {
	files := []struct {
		path, text string
		mode       os.FileMode
	}{
		{cmp.Or(b.CABundlePath, trust.DefaultCABundlePath), b.CABundlePEM, 0o644},
		{cmp.Or(b.NodeCertCABundlePath, trust.DefaultNodeCABundlePath), b.NodeCertCABundlePEM, 0o644},
		{trust.DefaultEnvFile, b.EnvFile(), 0o600},
	}
	for _, f := range files {
		if !filepath.IsAbs(f.path) {
			return fmt.Errorf("the bundle's path %q is not absolute", f.path)
		}
		path := filepath.Join(root, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as an installed node
			return err
		}
		if err := os.WriteFile(path, []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	return nil
}

// imageWorkloads is where the image has the specs of its workloads, if it has any.
const imageWorkloads = "usr/share/gpuaas/workloads"

// addWorkloads copies the specs of the image to the agent's process driver, and selects it. An
// image without specs has nothing that runs workloads: unless the bundle names a driver, the agent
// is configured for a node without workloads.
func addWorkloads(root, driver string) error {
	specs, err := filepath.Glob(filepath.Join(root, imageWorkloads, "*.json"))
	switch {
	case err != nil || len(specs) == 0 && driver != "":
		return err
	case len(specs) == 0:
		return selectDriver(root, inventory.DriverNone)
	}
	dir := filepath.Join(root, filepath.Dir(trust.DefaultStateDir), "workloads")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, spec := range specs {
		text, err := os.ReadFile(spec)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(spec)), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return selectDriver(root, "process")
}

// selectDriver adds the driver to the env file, whose last line takes effect.
func selectDriver(root, driver string) error {
	env, err := os.OpenFile(filepath.Join(root, trust.DefaultEnvFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env, "GPUAAS_WORKLOAD_DRIVER=%q\n", driver)
	return errors.Join(err, env.Close())
}

// hostsFile returns the text of /etc/hosts.
func hostsFile(d machine.BootDocument) string {
	var b strings.Builder
	fmt.Fprintf(&b, "127.0.0.1 localhost\n127.0.1.1 %s\n", d.Host)
	for _, name := range slices.Sorted(maps.Keys(d.Hosts)) {
		fmt.Fprintf(&b, "%s %s\n", d.Hosts[name], name)
	}
	return b.String()
}
