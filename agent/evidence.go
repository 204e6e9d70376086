package agent

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuaas/gpuaas/agent/doctor"
	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// doctor prints the checks, and then writes the bundle if there is a file for it. Faults are an
// error.
func (p program) doctor(ctx context.Context, output, file string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	c, fault := p.load()
	r := Diagnose(ctx, c, fault)
	var err error
	if output == "json" {
		enc := json.NewEncoder(p.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = printReport(p.stdout, r)
	}
	if err == nil && file != "" {
		if err := writeBundle(file, p.evidence(ctx, c, r)); err != nil {
			return schema.Wrap(schema.KindInvalidRequest, err, "writing --bundle").WithNext("name a file that does not exist in a directory that you may write")
		}
	}
	if faults := r.Faults(); err == nil && len(faults) > 0 {
		return schema.NewError(schema.KindInternal, "%d of %d checks found a fault, the first one in: %s", len(faults), len(r.Checks), faults[0].Name)
	}
	return err
}

// maxShown bounds an answer in the table, which may contain text of a foreign server.
const maxShown = 1000

func printReport(w io.Writer, r diagnosis.Report) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, c := range r.Checks {
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Result, c.Name, text.Printable(c.Answer, maxShown))
		if c.Result == diagnosis.Failed {
			fmt.Fprintf(t, "\tasked\t%s\n\towner\t%s\n\tnext\t%s\n", text.Printable(c.Asked, maxShown), c.Owner, c.Next)
		}
	}
	return t.Flush()
}

// evidenceFile is one file of a bundle.
type evidenceFile struct {
	name    string
	content []byte
}

// The bounds of the evidence.
const (
	journalLines    = "50"
	evidenceBytes   = 1 << 20
	evidenceTimeout = 10 * time.Second // of each program
)

// evidence is the content of a bundle. None of it has a token or a key.
func (p program) evidence(ctx context.Context, c Config, r diagnosis.Report) []evidenceFile {
	status, err := ReadStatus(ctx, c)
	encode := func(v any) []byte {
		raw, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return []byte(err.Error())
		}
		return raw
	}
	files := []evidenceFile{{"doctor.json", encode(r)}}
	if err != nil {
		files = append(files, evidenceFile{"status.txt", []byte(err.Error())})
	} else {
		files = append(files, evidenceFile{"status.json", encode(status)})
	}
	run := func(name string, args ...string) []byte {
		limited, cancel := context.WithTimeout(ctx, evidenceTimeout)
		defer cancel()
		stdout, stderr, err := command.Runner{}.Run(limited, evidenceBytes, name, args...)
		if err != nil {
			return []byte(strings.Join(append([]string{name}, args...), " ") + ": " + err.Error() + "\n" + stderr)
		}
		return []byte(stdout)
	}
	unit := cmp.Or(variable(p.env, "GPUAAS_NODE_AGENT_SYSTEMD_UNIT"), trust.DefaultSystemdUnit)
	return withoutSecrets(secrets.New(c.EnrollmentToken), append(files,
		evidenceFile{"node-agent.env", []byte(publicEnv(cmp.Or(c.EnvFile, trust.DefaultEnvFile)))},
		evidenceFile{"hosts.txt", []byte(strings.Join(doctor.HostsLines(hostsFile, c.route().Host()), "\n") + "\n")},
		evidenceFile{"journal.txt", run("journalctl", "--unit", unit, "--lines", journalLines, "--no-pager", "--output", "short-iso")},
		evidenceFile{"unit.txt", run("systemctl", "show", unit, "--property", "ActiveState,SubState,Result,ExecMainStatus,NRestarts,ActiveEnterTimestamp")},
		evidenceFile{"connections.txt", run("ss", "--tcp", "--numeric", "--processes", "state", "all", "( dport = :"+c.route().Port()+" )")},
	))
}

func variable(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// withoutSecrets redacts the files: a bundle may leave the company.
func withoutSecrets(scan *secrets.Scanner, files []evidenceFile) []evidenceFile {
	for i, f := range files {
		files[i].content = scan.Redact(f.content)
	}
	return files
}

// isPublic reports whether the value of a variable of the env file is no secret.
func isPublic(name string) bool {
	return slices.Contains([]string{
		"GPUAAS_NODE_ID", "GPUAAS_ENV", "GPUAAS_API_URL", "GPUAAS_TASK_SIGNING_PUBKEYS", "GPUAAS_CA_BUNDLE_PATH",
		"GPUAAS_NODE_CERT_CA_BUNDLE_PATH", "GPUAAS_CERT_PATH", "GPUAAS_KEY_PATH", "GPUAAS_STATE_DIR", "GPUAAS_WORKLOAD_DRIVER",
		"GPUAAS_WORKLOAD_SLICE", "GPUAAS_WORKLOAD_LABEL", "GPUAAS_DOCKER_STOP_DAEMON", "DOCKER_HOST", "GPUAAS_KUBECONFIG",
		"GPUAAS_KUBERNETES_NODE", "GPUAAS_KUBERNETES_STOP_UNIT", "GPUAAS_KUBERNETES_VIP_LEASE", "GPUAAS_NVIDIA_SMI", "GPUAAS_RELEASE_PUBKEYS",
		"GPUAAS_NODE_AGENT_INSTALL_ROOT", "GPUAAS_NODE_AGENT_ENV_FILE", "GPUAAS_NODE_AGENT_SYSTEMD_UNIT",
	}, name)
}

// publicEnv returns the env file. The values of all variables that are not known to be public
// are replaced, and so is every line that is not an assignment.
func publicEnv(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for line := range strings.Lines(string(raw)) {
		name, _, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		switch {
		case ok && isPublic(name) && !hasUser(name, line):
			b.WriteString(strings.TrimRight(line, "\r\n") + "\n")
		case ok && !strings.HasPrefix(name, "#"):
			b.WriteString(name + "=REDACTED\n")
		case strings.TrimSpace(line) != "":
			b.WriteString("# REDACTED\n")
		}
	}
	return b.String()
}

// hasUser reports whether a line may contain a URL with a user, and so a password. The scheme of
// the API's URL may be missing by mistake.
func hasUser(name, line string) bool {
	_, rest, ok := strings.Cut(line, "://")
	return ok && strings.Contains(rest, "@") || name == "GPUAAS_API_URL" && strings.Contains(line, "@")
}

// writeBundle writes the files as a gzip-compressed tar archive that only its owner can read. If
// it fails, there is no file.
func writeBundle(file string, files []evidenceFile) (err error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = cmp.Or(err, out.Close()); err != nil {
			err = errors.Join(err, os.Remove(file))
		}
	}()
	packed := gzip.NewWriter(out)
	archive := tar.NewWriter(packed)
	for _, f := range files {
		if err := archive.WriteHeader(&tar.Header{Name: f.name, Mode: 0o600, Size: int64(len(f.content)), ModTime: time.Now()}); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}
	return cmp.Or(archive.Close(), packed.Close())
}
