package adminapi

import (
	"embed"
	"strings"
	"text/template"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
)

//go:embed scripts/*.tmpl
var scripts embed.FS

// script is the data of the script templates. It contains a secret: the token, or
// the reference to one.
type script struct {
	trust.BootstrapBundle
	Host string
	// Reference, if not empty, replaces the token and the bundle.
	Reference string
	// KeyPattern and KeyList are the bundle's variables as a regular expression and
	// as words.
	KeyPattern, KeyList string
	// Settings is the env file without its last line break.
	Settings    string
	StateDir    string
	TokenPrefix string
}

// newScript returns the data of a script for a host and a checked bundle. It is
// KindInvalidRequest bad_host for a host that validHost rejects.
func newScript(host, reference string, b trust.BootstrapBundle) (script, error) {
	if err := checkScriptHost(host, b.NodeID); err != nil {
		return script{}, err
	}
	s := scriptOf(host, reference, b)
	return s, checkScript(s)
}

func scriptOf(host, reference string, b trust.BootstrapBundle) script {
	if b.Package == nil {
		b.Package = &trust.AgentPackage{EnvFilePath: trust.DefaultEnvFile, SystemdUnitName: trust.DefaultSystemdUnit}
	}
	var keys []string
	for line := range strings.Lines(b.EnvFile()) {
		key, _, _ := strings.Cut(line, "=")
		keys = append(keys, key)
	}
	b.CABundlePEM, b.NodeCertCABundlePEM = strings.TrimSpace(b.CABundlePEM), strings.TrimSpace(b.NodeCertCABundlePEM)
	return script{BootstrapBundle: b, Host: host, Reference: reference, KeyPattern: strings.Join(keys, "|"), KeyList: strings.Join(keys, " "),
		Settings: strings.TrimSuffix(b.EnvFile(), "\n"), StateDir: trust.DefaultStateDir, TokenPrefix: trust.TokenPrefix}
}

// ID identifies the script by the public part of its secret, so that a host
// recognizes a script that it has run.
func (s script) ID() (string, error) {
	secret := s.Reference
	if secret == "" {
		secret = s.EnrollmentToken
	}
	id, _, err := trust.ParseToken(secret)
	return id, err
}

// FromRegistry reports whether the package is pulled from a registry.
func (s script) FromRegistry() bool { return s.Package.PullDeliveryMode == DeliverRegistry }

// PullsAfterFetch reports whether the bundle is fetched before the package: the
// pull credential is as secret as the token and expires soon, so it is in the
// bundle and not beside the reference.
func (s script) PullsAfterFetch() bool { return s.Reference != "" && s.Package.PullToken != "" }

// PackageURL is the URL of the package's archive: the blob of a registry, or the
// copy of the node API.
func (s script) PackageURL() string {
	if !s.FromRegistry() {
		return s.Package.OCIRef
	}
	name, _, _ := strings.Cut(s.Package.OCIRef, "@")
	registry, repository, _ := strings.Cut(name, "/")
	return "https://" + registry + "/v2/" + repository + "/blobs/" + s.Package.Digest
}

// PullHeader is the setting of curl for the pull credential.
func (s script) PullHeader() string {
	if s.Package.PullToken == "" {
		return ""
	}
	return "header = \"Authorization: Bearer " + s.Package.PullToken + "\"\n"
}

// FetchURL is the URL at which the reference is exchanged for its bundle.
func (s script) FetchURL() string { return s.APIURL + "/internal/v1/bootstrap" }

// FetchRequest are the settings of curl that send the reference.
func (s script) FetchRequest() string { return trust.BootstrapRequest{Reference: s.Reference}.Curl() }

// render fills in a template. It contains a value only as name={{sh .Value}} on a line
// of its own.
func (s script) render(name string) (string, error) {
	t, err := template.New(name).Funcs(template.FuncMap{"sh": quoted}).ParseFS(scripts, "scripts/*.tmpl")
	if err != nil {
		return "", schema.Wrap(schema.KindInternal, err, "reading the script templates")
	}
	var b strings.Builder
	if err := t.ExecuteTemplate(&b, name, s); err != nil {
		return "", schema.Wrap(schema.KindInternal, err, "making a script")
	}
	return b.String(), nil
}

// restartCommand returns one line of shell to copy to the node. The shell's
// built-in printf writes the script, so that no process list shows the token and
// the operator can read the whole script.
func (s script) restartCommand() (string, error) {
	program, err := s.render("restart.sh.tmpl")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`printf '%s\n'`)
	for line := range strings.Lines(program) {
		b.WriteString(" " + text.ShellQuote(strings.TrimSuffix(line, "\n")))
	}
	b.WriteString(` | if [ "$(id -u)" = 0 ] || [ -n "${DESTDIR-}" ]; then sh; else sudo sh; fi`)
	return b.String(), nil
}

// quoted is the function sh of the templates: text.ShellQuote of a value that a shell can hold.
func quoted(value string) (string, error) {
	if strings.ContainsRune(value, 0) {
		return "", schema.NewError(schema.KindInternal, "a value of a script contains a NUL byte")
	}
	return text.ShellQuote(value), nil
}
