package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// config is the configuration file: the admin APIs that the operator uses.
type config struct {
	CurrentContext string                `json:"current-context,omitempty"`
	Contexts       map[string]apiContext `json:"contexts,omitempty"`
}

// apiContext is one admin API.
type apiContext struct {
	APIURL string `json:"api-url"`
	// CAFile contains the CA certificates of the API as PEM. Empty for the system's.
	CAFile string `json:"ca-file,omitempty"`
	// Token is the bearer token that gpuaas login stored.
	Token string `json:"token,omitempty"`
}

// configPath is the path of the configuration file; empty without a home directory.
func (s *settings) configPath() string {
	if path := s.getenv("GPUAAS_CONFIG"); path != "" {
		return path
	}
	dir := s.getenv("XDG_CONFIG_HOME")
	if home := s.getenv("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".config")
	}
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "gpuaas", "config.yaml")
}

// loadConfig reads the configuration file. A missing file is an empty configuration; a
// file that others can access is rejected, since it contains tokens.
func (s *settings) loadConfig() (c config, err error) {
	c.Contexts = map[string]apiContext{}
	path := s.configPath()
	info, err := os.Stat(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return c, usagef("gpuaas login", "others can access %s, which contains tokens (mode %04o); run: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &c)
	}
	if err != nil {
		return c, usagef("gpuaas config", "reading the configuration file %s: %s", path, err)
	}
	return c, nil
}

// editConfig changes the configuration file. Its mode is 0600.
func (s *settings) editConfig(change func(c *config) error) error {
	c, err := s.loadConfig()
	if err != nil {
		return err
	}
	path := s.configPath()
	if path == "" {
		return usagef("gpuaas config", "there is no home directory: set GPUAAS_CONFIG to the path of the configuration file")
	}
	if err := change(&c); err != nil {
		return err
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("rendering the configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("creating the configuration's directory: %w", err)
	}
	file, err := newSecretFile(path)
	if err != nil {
		return err
	}
	defer file.discard()
	return file.write(string(text))
}

// selected returns the named context, or the current one when name is empty.
func (c config) selected(name string) (apiContext, error) {
	name = cmp.Or(name, c.CurrentContext)
	found, ok := c.Contexts[name]
	if !ok && name != "" {
		return found, usagef("gpuaas config set-context", "there is no context %q", name)
	}
	return found, nil
}

// completeContext offers the names of the contexts.
func (e *env) completeContext(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := e.loadConfig()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(c.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

func newConfig(e *env) *cobra.Command {
	return newGroup("config", "Manage contexts: the admin APIs to use",
		`Manages the configuration file. A context is an admin API with its address, its CA and a
login. Commands use the current context, or the one that --context names. Flags and
environment variables take precedence. A stored token is sent only to the address that is
stored with it. No command of this group sends a request.`,
		newConfigGet(e), newConfigSet(e), newConfigView(e),
		newConfigEdit(e, "use-context", "Select the current context", "Makes a context the current one.", func(c *config, name string) string {
			c.CurrentContext = name
			return "the current context is now " + name
		}),
		newConfigEdit(e, "delete-context", "Delete a context", "Deletes a context and its stored token.", func(c *config, name string) string {
			delete(c.Contexts, name)
			if c.CurrentContext != name {
				return "deleted context " + name
			}
			c.CurrentContext = ""
			return "deleted context " + name + "; there is no current context now, select one with: gpuaas config use-context CONTEXT"
		}),
		e.command("current-context", "Print the name of the current context", "Prints the name of the current context.",
			"  gpuaas config current-context", func(context.Context, string) error {
				c, err := e.loadConfig()
				if err == nil && c.CurrentContext == "" {
					err = usagef("gpuaas config use-context", "there is no current context")
				}
				if err != nil {
					return err
				}
				return e.print(c.CurrentContext, func(w io.Writer) { row(w, c.CurrentContext) }, c.CurrentContext)
			}))
}

// newConfigEdit makes a command that changes one existing context. change returns what
// it did.
func newConfigEdit(e *env, verb, short, long string, change func(c *config, name string) string) *cobra.Command {
	return e.command(verb+" CONTEXT", short, long, "  gpuaas config "+verb+" prod", func(_ context.Context, name string) error {
		var did string
		err := e.editConfig(func(c *config) error {
			if _, err := c.selected(name); err != nil {
				return err
			}
			did = change(c, name)
			return nil
		})
		if err == nil {
			e.message("%s", did)
		}
		return err
	})
}

func newConfigSet(e *env) *cobra.Command {
	var caFile string
	c := e.command("set-context CONTEXT", "Create or change a context",
		`Creates a context or changes its address (--api-url) or CA (--ca-file). The first context
becomes the current one. A new address discards the stored token.`,
		"  gpuaas config set-context prod --api-url https://gpuaas.example.com --ca-file /etc/gpuaas/ca.crt",
		func(_ context.Context, name string) (err error) {
			if caFile != "" {
				if _, err := trusting(caFile); err != nil {
					return err
				}
				if caFile, err = filepath.Abs(caFile); err != nil {
					return err
				}
			}
			var stored apiContext
			err = e.editConfig(func(all *config) error {
				err := all.set(name, e.flags.apiURL, caFile)
				stored = all.Contexts[name]
				return err
			})
			if err == nil {
				e.message("stored context %s: %s", name, stored.APIURL)
				e.warnPlain(stored.APIURL)
			}
			return err
		})
	c.Flags().StringVar(&caFile, "ca-file", "", "PEM file of the CA certificates of the admin API (default: the system's)")
	return c
}

// warnPlain warns of an address to which the token would be sent unencrypted.
func (e *console) warnPlain(address string) {
	if isPlain(address) {
		e.message("warning: %s is not encrypted: anyone on the network could read the token; commands reject it without --insecure-http", address)
	}
}

// set creates or changes a context. Empty values keep the stored ones.
func (c *config) set(name, apiURL, caFile string) error {
	old, found := c.Contexts[name]
	switch {
	case name == "":
		return usagef("gpuaas config set-context", "the name of a context must not be empty")
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return usagef("gpuaas config set-context", "context %q: the name must not contain blanks or control characters", name)
	case !found && apiURL == "":
		return usagef("gpuaas config set-context", "missing --api-url: the address of the new context %q", name)
	}
	changed := apiContext{APIURL: cmp.Or(apiURL, old.APIURL), CAFile: cmp.Or(caFile, old.CAFile)}
	if changed.APIURL == old.APIURL {
		changed.Token = old.Token
	}
	if err := checkURL(changed.APIURL); err != nil {
		return err
	}
	c.Contexts[name] = changed
	c.CurrentContext = cmp.Or(c.CurrentContext, name)
	return nil
}

func newConfigGet(e *env) *cobra.Command {
	return e.command("get-contexts", "List the contexts", "Lists the contexts. No token is shown.",
		"  gpuaas config get-contexts\n  gpuaas config get-contexts -o name", func(context.Context, string) error {
			c, err := e.loadConfig()
			if err != nil {
				return err
			}
			shown := c.redacted()
			return printList(e.console, listing[string]{
				object: shown, rows: slices.Sorted(maps.Keys(c.Contexts)),
				empty:  "there are no contexts; create one with: gpuaas config set-context CONTEXT --api-url URL",
				header: []string{"CURRENT", "NAME", "API", "CA", "TOKEN"},
				cells: func(name string) []string {
					current, v := "", shown.Contexts[name]
					if name == c.CurrentContext {
						current = "*"
					}
					return []string{current, name, v.APIURL, dash(v.CAFile), dash(v.Token)}
				},
				name: func(name string) string { return name },
			})
		})
}

func newConfigView(e *env) *cobra.Command {
	return e.command("view", "Print the configuration", "Prints the configuration file as YAML, with its tokens redacted.",
		"  gpuaas config view\n  gpuaas config view -o json", func(context.Context, string) error {
			c, err := e.loadConfig()
			if err != nil {
				return err
			}
			shown := c.redacted()
			text, err := yaml.Marshal(shown)
			if err != nil {
				return fmt.Errorf("rendering the configuration: %w", err)
			}
			return e.print(shown, func(w io.Writer) { fmt.Fprint(w, string(text)) })
		})
}

// redacted is the configuration without its tokens.
func (c config) redacted() config {
	out := config{CurrentContext: c.CurrentContext, Contexts: maps.Clone(c.Contexts)}
	for name, v := range out.Contexts {
		if v.Token != "" {
			v.Token = "REDACTED"
			out.Contexts[name] = v
		}
	}
	return out
}
