package adminapi

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// sample returns a valid bundle.
func sample() trust.BootstrapBundle {
	text, _, _ := trust.NewToken()
	return trust.BootstrapBundle{NodeID: schema.NewID(), EnrollmentToken: text, APIURL: "https://api.internal:8443", TaskSigningPubkeys: "active:k:AAAA",
		CABundlePath: trust.DefaultCABundlePath, NodeCertCABundlePath: trust.DefaultNodeCABundlePath, CertPath: trust.DefaultCertPath,
		KeyPath: trust.DefaultKeyPath, Env: "test", CABundlePEM: "CA", CABundleFingerprint: "f", NodeCertCABundlePEM: "NODE CA",
		ExpiresAt: "2026-01-01T00:00:00Z",
		Package: &trust.AgentPackage{OCIRef: "https://api.internal:8443/package", Digest: digest, PullDeliveryMode: DeliverArchive,
			InstallRoot: trust.DefaultInstallRoot, EnvFilePath: trust.DefaultEnvFile, SystemdUnitName: trust.DefaultSystemdUnit}}
}

// forms are the scripts, each with the field that makes its form.
func forms() map[string]func(*script) {
	registry := func(pull string) func(*script) {
		return func(s *script) {
			s.Package.OCIRef, s.Package.PullDeliveryMode, s.Package.PullToken = "registry.test/agent@"+digest, DeliverRegistry, pull
		}
	}
	refer := func(s *script) { s.Reference, _, _ = trust.NewToken() }
	return map[string]func(*script){
		"token": func(*script) {}, "reference": refer, "registry": registry("pull"),
		"registry and reference": func(s *script) { registry("pull")(s); refer(s) },
		"restart":                func(*script) {},
	}
}

func textOf(form string, s script) (string, error) {
	if form == "restart" {
		return s.restartCommand()
	}
	return s.render("bootstrap.sh.tmpl")
}

// strings of a script by the name of their field.
func fieldsOf(s *script) map[string]*string {
	out := map[string]*string{}
	for _, v := range []reflect.Value{reflect.ValueOf(s).Elem(), reflect.ValueOf(&s.BootstrapBundle).Elem(), reflect.ValueOf(s.Package).Elem()} {
		for f, value := range v.Fields() {
			if p, ok := reflect.TypeAssert[*string](value.Addr()); ok && f.Name != "PullDeliveryMode" {
				out[f.Name] = p
			}
		}
	}
	return out
}

// sandbox is a host whose programs are stubs. curl returns the package, or the bundle.
type sandbox struct{ root, bin, canary string }

func newSandbox(t *testing.T, s script) sandbox {
	t.Helper()
	b := sandbox{root: t.TempDir(), bin: t.TempDir(), canary: filepath.Join(t.TempDir(), "canary")}
	put := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	}
	put(b.root+"/etc/os-release", "ID=ubuntu\n")
	put(b.bin+"/systemctl", "#!/bin/sh\n")
	put(b.bin+"/sha256sum", "#!/bin/sh\necho "+strings.TrimPrefix(digest, "sha256:")+" -\n")
	put(b.bin+"/curl", `#!/bin/sh
while [ "$1" != --output ]; do shift; done
case $2 in *.json) exec cp "${0%/*}/bundle" "$2" ;; *) exec cp "${0%/*}/package" "$2" ;; esac
`)
	bundle, err := json.Marshal(s.BootstrapBundle)
	require.NoError(t, err)
	put(b.bin+"/bundle", string(bundle))
	put(b.bin+"/p/gpuaas-node-agent", "#!/bin/sh\necho v1\n")
	for _, name := range []string{"install-node-agent.sh", "gpuaas-node-agent.service"} {
		text, err := os.ReadFile("../../deploy/package/" + name)
		require.NoError(t, err)
		put(b.bin+"/p/"+name, string(text))
	}
	require.NoError(t, exec.CommandContext(t.Context(), "tar", "-czf", b.bin+"/package", "-C", b.bin+"/p", ".").Run())
	return b
}

// run runs a script and reports whether the canary was made.
func (b sandbox) run(t *testing.T, text string) (said string, executed bool, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-s")
	cmd.Stdin, cmd.Dir = strings.NewReader(text), b.root
	cmd.Env = []string{"DESTDIR=" + b.root, "PATH=" + b.bin + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	_, missing := os.Stat(b.canary)
	return string(out), missing == nil, err
}

// payloads run a command if a script does not quote them: as a word, between double
// quotes, between single quotes, in a comment, in a here-document, in a sed expression.
func payloads(command string) []string {
	return []string{
		"'$(" + command + ")'\n" + command + "\nGPUAAS_END\n" + command + "\n",
		"\"; " + command + "; \"`" + command + "`",
		"x|e\n1e " + command + "\n#|\\",
	}
}

// No value of a script is executed, whatever it is, in no form of a script. Values that
// reach the host in a fetched bundle are not either.
func TestHostileValues(t *testing.T) {
	t.Parallel()
	for form, shape := range forms() {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			good := scriptOf("gpu-1", "", sample())
			shape(&good)
			plain, err := textOf(form, good)
			require.NoError(t, err)
			said, _, err := newSandbox(t, good).run(t, plain)
			require.NoError(t, err, said) // the whole script runs
			for field := range fieldsOf(&good) {
				for i := range payloads("") {
					if i == 0 || form == "token" && !testing.Short() {
						runHostile(t, form, shape, field, i)
					}
				}
			}
		})
	}
}

func runHostile(t *testing.T, form string, shape func(*script), field string, i int) {
	t.Helper()
	s := scriptOf("gpu-1", "", sample())
	shape(&s)
	b := newSandbox(t, s)
	*fieldsOf(&s)[field] = payloads("touch " + b.canary)[i]
	text, err := textOf(form, s)
	if err != nil {
		return // the value is not even rendered
	}
	parse := exec.CommandContext(t.Context(), "sh", "-n")
	parse.Stdin = strings.NewReader(text)
	out, err := parse.CombinedOutput()
	require.NoError(t, err, "%s: %s", field, out)
	bundle, err := json.Marshal(s.BootstrapBundle)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(b.bin+"/bundle", bundle, 0o600))
	said, executed, _ := b.run(t, text)
	assert.False(t, executed, "%s in payload %d was executed: %s", field, i, said)
}

// The payloads do run in a template that does not quote.
func TestPayloadsWork(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"word": "echo {{.}}", "double quotes": `echo "{{.}}"`, "single quotes": "echo '{{.}}'",
		"comment": "# {{.}}\n:", "here-document": "cat <<\"GPUAAS_END\"\n{{.}}\nGPUAAS_END\n:", "sed": `printf "@A@\n" | sed -e '` + "s|@A@|{{.}}|g'"} {
		ran := false
		for i := range payloads("") {
			b := newSandbox(t, scriptOf("gpu-1", "", sample()))
			var out strings.Builder
			require.NoError(t, template.Must(template.New("").Parse(text)).Execute(&out, payloads("touch " + b.canary)[i]))
			_, executed, _ := b.run(t, out.String())
			ran = ran || executed
		}
		assert.True(t, ran, name)
	}
}

// A value that is not valid is not rendered: the error names it and does not repeat it.
func TestHostileValuesRejected(t *testing.T) {
	t.Parallel()
	derived := []string{"CABundleFingerprint", "KeyPattern", "KeyList", "Settings", "StateDir", "TokenPrefix"}
	good := scriptOf("gpu-1", "", sample())
	require.NoError(t, checkScript(good))
	for field := range fieldsOf(&good) {
		for _, payload := range append(payloads("x"), "a\x00b", "/"+strings.Repeat("a", maxScriptPEM+1), "é") {
			s := scriptOf("gpu-1", "", sample())
			*fieldsOf(&s)[field] = payload
			err := checkScript(s)
			switch {
			case field == "Host" || field == "NodeID":
				err = checkScriptHost(s.Host, s.NodeID)
			case strings.HasSuffix(field, "PEM") && !strings.ContainsAny(payload, "\x00é") && len(payload) < maxScriptPEM, slices.Contains(derived, field):
				continue
			}
			require.Error(t, err, "%s %q", field, payload[:min(len(payload), 40)])
			require.Less(t, len(err.Error()), 400)
			require.NotContains(t, err.Error(), "$(x)", field)
		}
	}
}

// FuzzShellQuote: a shell reads a quoted text as the same one word.
func FuzzShellQuote(f *testing.F) {
	for _, s := range append(payloads("id"), "", "'", "''", `\'`, "a b", "$HOME", "*", "~", "\n", "\r\n", "é", "\xff", "-n", "!!") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		word, err := quoted(s)
		if strings.ContainsRune(s, 0) {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), "sh", "-s")
		cmd.Stdin = strings.NewReader("v=" + word + "\nprintf %s. \"$v\"; printf %s. " + word + "; set -- " + word + "; echo $#\n")
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, s+"."+s+".1\n", string(out))
	})
}
