// Package settings reads what the worker and the API are told by their
// environment, and gathers all that is wrong with it. Start at From.
package settings

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// Reader reads an environment. What is wrong is kept and told by Err at the end,
// all at once and without any secret.
type Reader struct {
	getenv func(string) string
	faults []string
}

// From returns a reader of the environment.
func From(getenv func(string) string) *Reader { return &Reader{getenv: getenv} }

// Check notes a fault where bad.
func (r *Reader) Check(bad bool, format string, args ...any) {
	if bad {
		r.faults = append(r.faults, fmt.Sprintf(format, args...))
	}
}

// Need reads a variable that must be set.
func (r *Reader) Need(name string) string {
	v := r.getenv(name)
	r.Check(v == "", "%s is not set", name)
	return v
}

// Secret reads a variable, or the file that its _FILE sibling names.
func (r *Reader) Secret(name string) string {
	if v := r.getenv(name); v != "" {
		return v
	}
	if r.getenv(name+"_FILE") == "" {
		r.Check(true, "%s or %s_FILE is not set", name, name)
		return ""
	}
	return r.File(name + "_FILE")
}

// File reads the one-line file that a variable names.
func (r *Reader) File(name string) string {
	path := r.Need(name)
	if path == "" {
		return ""
	}
	raw, err := os.ReadFile(path)
	r.Check(err != nil, "%s: %v", name, err)
	text := strings.TrimSpace(string(raw))
	r.Check(err == nil && text == "", "%s: the file is empty", name)
	return text
}

// LogLevel reads GPUAAS_LOG_LEVEL: debug, info, warn, error. Defaults to info.
func (r *Reader) LogLevel() (level slog.Level) {
	if v := r.getenv("GPUAAS_LOG_LEVEL"); v != "" {
		r.Check(level.UnmarshalText([]byte(v)) != nil, "GPUAAS_LOG_LEVEL: unknown level %q", v)
	}
	return level
}

// Err is nil when nothing was wrong, else KindInvalidRequest with every fault
// and next as its next step.
func (r *Reader) Err(next string) error {
	if len(r.faults) == 0 {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "configuration: %s", strings.Join(r.faults, "; ")).WithNext(next)
}

// Secrets are the database's password and the Vault login's secret, which
// Temporal must never see. A file that cannot be read is the login's to report.
func Secrets(databaseURL, secretIDFile string) []schema.Secret {
	var out []schema.Secret
	if u, err := url.Parse(databaseURL); err == nil {
		if password, ok := u.User.Password(); ok {
			out = append(out, schema.NewSecret(password))
		}
	}
	if raw, err := os.ReadFile(secretIDFile); err == nil {
		out = append(out, schema.NewSecret(strings.TrimSpace(string(raw))))
	}
	return out
}
