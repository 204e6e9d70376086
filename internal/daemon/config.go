package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Common is the configuration of every daemon. The program sets the defaults of
// MetricsAddr, LameDuck and DrainTimeout.
type Common struct {
	MetricsAddr  string        `env:"GPUAAS_METRICS_ADDR" help:"Listen address of /livez, /readyz and /metrics."`
	LogLevel     slog.Level    `env:"GPUAAS_LOG_LEVEL" envDefault:"info" help:"Lowest level that is logged: debug, info, warn or error."`
	LameDuck     time.Duration `env:"GPUAAS_LAME_DUCK" help:"How long the process keeps serving after a stop signal while /readyz returns 503, so that load balancers stop sending requests."`
	DrainTimeout time.Duration `env:"GPUAAS_DRAIN_TIMEOUT" help:"How long requests and activities in progress may take to finish after the lame-duck period. Work that takes longer is aborted."`
	ProbeEvery   time.Duration `env:"GPUAAS_HEALTH_INTERVAL" envDefault:"5s" help:"How often the dependencies behind /readyz are probed."`
}

func (c *Common) common() *Common { return c }

// check reports faults in the values that every daemon has.
func (c *Common) check(f *Faults) {
	f.Address("GPUAAS_METRICS_ADDR", c.MetricsAddr)
	f.Check(c.LameDuck < 0, "GPUAAS_LAME_DUCK must not be negative, for example 5s")
	f.Check(c.ProbeEvery <= 0, "GPUAAS_HEALTH_INTERVAL must be positive, for example 5s")
	f.Check(c.DrainTimeout <= 0, "GPUAAS_DRAIN_TIMEOUT must be positive, for example 10s")
}

// Engines has the addresses of Postgres and Vault, and the environment's name.
type Engines struct {
	DatabaseURL    schema.Secret `env:"GPUAAS_DATABASE_URL,required" example:"postgres://USER:PASSWORD@HOST:5432/DATABASE" help:"Postgres connection URL."`
	DatabasePool   int32         `env:"GPUAAS_DATABASE_POOL" help:"Largest number of connections of this process to the database. Default: pool_max_conns of GPUAAS_DATABASE_URL, or 10 without it."`
	VaultAddr      string        `env:"VAULT_ADDR,required" example:"https://vault.example.com:8200" help:"URL of Vault."`
	RoleIDFile     string        `env:"GPUAAS_VAULT_ROLE_ID_FILE" example:"/etc/gpuaas/vault-role-id" help:"File with the role ID of the Vault login (AppRole). Required without GPUAAS_VAULT_KUBERNETES_ROLE."`
	SecretIDFile   string        `env:"GPUAAS_VAULT_SECRET_ID_FILE" example:"/etc/gpuaas/vault-secret-id" help:"File with the secret ID of the Vault login (AppRole). Required without GPUAAS_VAULT_KUBERNETES_ROLE."`
	KubeRole       string        `env:"GPUAAS_VAULT_KUBERNETES_ROLE" help:"Role of the Vault login with the pod's service account, in place of the AppRole."`
	KubeMount      string        `env:"GPUAAS_VAULT_KUBERNETES_MOUNT" envDefault:"kubernetes" help:"Path of Vault's Kubernetes auth method."`
	KubeToken      string        `env:"GPUAAS_VAULT_KUBERNETES_TOKEN_FILE" envDefault:"/var/run/secrets/kubernetes.io/serviceaccount/token" help:"File with the token of the pod's service account."`
	Env            string        `env:"GPUAAS_ENV,required" example:"prod" help:"Name of the environment, part of every node identity: 1 to 40 lower-case letters, digits, dots and hyphens."`
	AllowPlaintext bool          `env:"GPUAAS_ALLOW_PLAINTEXT" envDefault:"false" help:"true allows connections without TLS to Postgres, Vault, Temporal and MAAS on other machines. Without it, such a configuration is rejected."`
}

// Check reports faults in the values.
func (e Engines) Check(f *Faults) {
	e.DatabasePlaintext(f, "GPUAAS_DATABASE_URL", e.DatabaseURL)
	f.DatabaseURL("GPUAAS_DATABASE_URL", e.DatabaseURL)
	f.Check(e.DatabasePool < 0, "GPUAAS_DATABASE_POOL must not be negative, for example 20")
	u, err := url.Parse(e.VaultAddr)
	f.Check(e.VaultAddr != "" && (err != nil || u.Scheme == "" || u.Host == ""), "VAULT_ADDR must be a URL, for example https://vault.example.com:8200")
	if err == nil {
		e.Plaintext(f, "VAULT_ADDR", u.Hostname(), u.Scheme != "http")
	}
	f.VaultLogin("GPUAAS_VAULT_", e.KubeRole, e.RoleIDFile, e.SecretIDFile)
	f.Check(e.Env != "" && !trust.ValidEnv(e.Env), "GPUAAS_ENV must be 1 to 40 lower-case letters, digits, dots and hyphens, and begin and end with a letter or digit")
}

// Secrets returns the database password and the credential of the Vault login,
// which must never reach Temporal. A file that cannot be read is left out: the
// login reports it.
func (e Engines) Secrets() []schema.Secret {
	file := e.SecretIDFile
	if e.KubeRole != "" {
		file = e.KubeToken
	}
	return append(DatabasePassword(e.DatabaseURL), FileSecret(file)...)
}

// FileSecret returns the content of a file, nothing if it cannot be read.
func FileSecret(file string) []schema.Secret {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return []schema.Secret{schema.NewSecret(strings.TrimSpace(string(raw)))}
}

// DatabasePassword returns the password in a database URL, if there is one.
func DatabasePassword(databaseURL schema.Secret) []schema.Secret {
	u, err := url.Parse(databaseURL.Reveal())
	if err != nil {
		return nil
	}
	if password, ok := u.User.Password(); ok {
		return []schema.Secret{schema.NewSecret(password)}
	}
	return nil
}

// librarySettings lists the variables that the client libraries of Temporal and
// OpenTelemetry read.
func librarySettings() []Setting {
	return []Setting{
		{Name: "TEMPORAL_ADDRESS", Default: "localhost:7233", Help: "Address of Temporal. All TEMPORAL_ variables and profiles of the temporal command apply."},
		{Name: "TEMPORAL_NAMESPACE", Default: "gpuaas", Help: "Temporal namespace."},
		{Name: "TEMPORAL_API_KEY", Secret: true, Help: "API key or JWT for Temporal. Turns TLS on, unless TEMPORAL_TLS is false. The file is read for each call, so that a rotated key needs no restart."},
		{Name: "TEMPORAL_TLS", Help: "true or false: whether to connect with TLS."},
		{Name: "TEMPORAL_TLS_CLIENT_CERT_PATH", Help: "Client certificate in PEM. It is read for each connection."},
		{Name: "TEMPORAL_TLS_CLIENT_KEY_PATH", Help: "Key of the client certificate in PEM."},
		{Name: "TEMPORAL_TLS_SERVER_CA_CERT_PATH", Help: "CAs that may issue the server's certificate, in PEM. Default: those of the system. It is read at the start."},
		{Name: "TEMPORAL_TLS_SERVER_NAME", Help: "Name in the server's certificate. Default: that of TEMPORAL_ADDRESS."},
		{Name: envTelemetry, Help: "URL of an OpenTelemetry collector (OTLP over HTTP) that receives traces. Default: no traces. All OTEL_ variables apply."},
	}
}

// Faults collects the faults of a configuration, to report all of them at once.
// A fault names variables and repeats no secret.
type Faults struct{ list []string }

// Check adds a fault when bad.
func (f *Faults) Check(bad bool, format string, args ...any) {
	if bad {
		f.list = append(f.list, fmt.Sprintf(format, args...))
	}
}

// Address adds a fault when the value of a variable is not host:port.
func (f *Faults) Address(name, value string) {
	_, port, err := net.SplitHostPort(value)
	f.Check(err != nil || port == "", "%s must be host:port, for example 127.0.0.1:9090", name)
}

// DatabaseURL adds a fault when the value of a variable is set and not a URL of a Postgres
// database.
func (f *Faults) DatabaseURL(name string, value schema.Secret) {
	u, err := url.Parse(value.Reveal()) // its error would repeat the password
	f.Check(value.Reveal() != "" && (err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql"),
		"%s must be a URL, for example postgres://USER:PASSWORD@HOST:5432/DATABASE", name)
}

func (f *Faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "invalid configuration:\n  %s", strings.Join(f.list, "\n  "))
}

// Load fills the struct that target points to from the environment. A field is
// tagged env:"NAME", with ",required" where there is no default, envDefault with
// its default, example with an example of a value, and help with its description.
// A field of type schema.Secret may also be given as NAME_FILE, the path of a file
// with the value; exclusive:"true" rejects both. An empty variable counts as unset. When target has a method
// Check(*Faults), Load calls it last: it also reads the files that the values name.
// The error is of KindInvalidRequest and lists every fault.
func Load(target any, getenv func(string) string) error {
	settings, faults := settingsOf(target), &Faults{}
	environment, unread := map[string]string{}, map[string]bool{}
	for _, s := range settings {
		value, err := s.read(getenv)
		if err != nil {
			faults.Check(true, "%v", err)
			unread[s.Name] = true
		}
		if value != "" {
			environment[s.Name] = value
		}
	}
	err := env.ParseWithOptions(target, env.Options{Environment: environment, FuncMap: map[reflect.Type]env.ParserFunc{
		reflect.TypeFor[schema.Secret](): func(v string) (any, error) { return schema.NewSecret(v), nil },
	}})
	for _, s := range settings {
		if !unread[s.Name] {
			faults.parsed(s, environment[s.Name], err)
		}
	}
	if c, ok := target.(Config); ok {
		c.common().check(faults)
	}
	if c, ok := target.(interface{ Check(f *Faults) }); ok {
		c.Check(faults)
	}
	return faults.err()
}

// maxWrong bounds the part of a value that a fault repeats, in characters.
const maxWrong = 64

// parsed adds the fault that the library reported for the setting, which has a value. Values
// that are parsed are no secrets.
func (f *Faults) parsed(s Setting, value string, err error) {
	all, ok := errors.AsType[env.AggregateError](err)
	if !ok {
		f.Check(err != nil, "%v", err)
		return
	}
	for _, e := range all.Errors {
		if unset, ok := errors.AsType[env.VarIsNotSetError](e); ok && unset.Key == s.Name {
			fault := strings.Join(s.Names(), " or ") + " is not set"
			if s.Example != "" {
				fault += ", for example " + s.Name + "=" + s.Example
			}
			f.Check(true, "%s", fault)
		}
		if bad, ok := errors.AsType[env.ParseError](e); ok && bad.Name == s.field {
			form, wrong := formOf(s, bad.Type, value)
			f.Check(true, "%s must be %s, not %q", s.Name, form, text.Line(wrong, maxWrong))
		}
	}
}

// formOf describes the values of a setting of the type, and returns the part of a value that
// does not have that form.
func formOf(s Setting, t reflect.Type, value string) (form, wrong string) {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "a duration, for example 30s", value
	case reflect.TypeFor[bool]():
		return "true or false", value
	case reflect.TypeFor[slog.Level]():
		return "debug, info, warn or error", value
	}
	switch {
	case t.Kind() == reflect.Map:
		parts := strings.Split(value, ",")
		if i := slices.IndexFunc(parts, func(p string) bool { return !strings.Contains(p, ":") }); i >= 0 {
			value = parts[i]
		}
		return "pairs NAME:VALUE separated by commas, for example " + s.Example, value
	case t.Kind() == reflect.Float64:
		return "a number, for example 1.5", value
	}
	return "a whole number, for example 1", value
}

// VaultLogin adds a fault unless either the role of a service account or both files of an
// AppRole are set. prefix is that of the variables.
func (f *Faults) VaultLogin(prefix, role, roleIDFile, secretIDFile string) {
	switch {
	case role == "":
		f.Check(roleIDFile == "" || secretIDFile == "", "%sROLE_ID_FILE and %[1]sSECRET_ID_FILE must be set, or %[1]sKUBERNETES_ROLE", prefix)
	default:
		f.Check(roleIDFile != "" || secretIDFile != "", "%sKUBERNETES_ROLE excludes %[1]sROLE_ID_FILE and %[1]sSECRET_ID_FILE", prefix)
	}
}
